"""Fixtures of the tests of the server's side of a cluster."""

from __future__ import annotations

import pytest

from lehr.store import Store
from lehr_testing.dispatching import Bench
from lehr_testing.rollouts import World


@pytest.fixture
def world(store: Store) -> World:
    """A cluster whose runs of rollouts train by records that are written into the store."""
    return World(store)


@pytest.fixture
def bench(tmp_path, monkeypatch):
    made = Bench(tmp_path, monkeypatch)
    yield made
    made.store.close()
