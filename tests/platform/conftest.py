"""Fixtures of the tests of the platform."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from lehr.store import Store
from lehr_testing.stores import fresh_store


@pytest.fixture
def store(tmp_path: Path) -> Iterator[Store]:
    """An empty store in a home of its own."""
    with fresh_store(tmp_path / "home") as opened:
        yield opened
