"""One real server (API, Ray head, agent, 8 logical GPUs) for all tests of this folder that ask."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from lehr_testing.server import Server
from lehr_testing.specs import text_corpus

pytest_plugins = ["lehr_testing.plugin"]


@pytest.fixture(scope="session")
def corpus(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return text_corpus(tmp_path_factory.mktemp("corpus") / "texts")


@pytest.fixture(scope="session")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    """For tests that leave it standing. One that kills it starts its own."""
    server = Server(tmp_path_factory.mktemp("home"), gpus=8)
    server.up()
    try:
        server.cluster_ready()
        yield server
    finally:
        server.down()


@pytest.fixture
def own_server(tmp_path: Path) -> Iterator[Server]:
    """For tests that disturb it, or a training under way on it."""
    server = Server(tmp_path / "home", gpus=2, paced=True)
    server.up()
    try:
        server.cluster_ready()
        yield server
    finally:
        server.down()
