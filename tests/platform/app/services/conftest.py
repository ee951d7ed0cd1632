"""Services over a real store, without HTTP."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from lehr.app.presenters import Presenter
from lehr.app.services.context import Context
from lehr_testing.api import FakeDispatcher
from lehr_testing.stores import fresh_store


@pytest.fixture
def context(tmp_path: Path) -> Iterator[Context]:
    dispatcher = FakeDispatcher()
    with fresh_store(tmp_path / "home") as store:
        yield Context(
            store=store,
            presenter=Presenter(store),
            dispatcher=dispatcher,
            cluster_views=dispatcher,
            home=tmp_path / "home",
            one_machine=True,
        )
