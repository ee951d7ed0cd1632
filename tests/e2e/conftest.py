"""A server of its own for a test that kills it or its runs."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from lehr_testing.server import Server


@pytest.fixture
def own_server(tmp_path: Path) -> Iterator[Server]:
    server = Server(tmp_path / "home", gpus=2)
    server.up()
    try:
        server.cluster_ready()
        yield server
    finally:
        server.down()
