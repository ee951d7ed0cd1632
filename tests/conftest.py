"""The real servers (API, Ray head, agent) that tests share, one of each kind in a worker.

Tests that share one are in the group of its name (``pytest.mark.xdist_group``), so that no
second worker starts another.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from lehr_testing.buckets import Bucket, s3_server
from lehr_testing.server import Server
from lehr_testing.specs import text_corpus

if TYPE_CHECKING:
    from lehr_testing.faults.ordeal import Ordeal

pytest_plugins = ["lehr_testing.plugin"]


@pytest.fixture(scope="session")
def corpus(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return text_corpus(tmp_path_factory.mktemp("corpus") / "texts")


@pytest.fixture(scope="session")
def bucket() -> Iterator[Bucket]:
    with s3_server() as bucket:
        yield bucket


def serve(server: Server) -> Iterator[Server]:
    server.up()
    try:
        server.cluster_ready()
        yield server
    finally:
        server.down()


@pytest.fixture(scope="session")
def platform(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    """The server behind ``server``, for fixtures that live longer than one test."""
    yield from serve(Server(tmp_path_factory.mktemp("platform") / "home", gpus=8))


@pytest.fixture
def server(platform: Server) -> Iterator[Server]:
    """For tests that leave it standing (group "platform"). Each finds all of its GPUs free."""
    yield platform
    platform.clear()


@pytest.fixture(scope="session")
def standing(tmp_path_factory: pytest.TempPathFactory, bucket: Bucket) -> Iterator[Server]:
    server = Server(tmp_path_factory.mktemp("restarted") / "home", gpus=2)
    server.environment.update(bucket.environment)
    yield from serve(server)


@pytest.fixture
def restarted(standing: Server) -> Iterator[Server]:
    """For tests that kill parts of it, or end and start it (group "restarted").

    Its processes, and so its nodes, find the ``bucket`` by their environment.
    """
    standing.ready()
    yield standing
    standing.ready()
    standing.clear()


@pytest.fixture(scope="session")
def attacked(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Ordeal]:
    from lehr_testing.faults.ordeal import ordeal

    yield from ordeal(tmp_path_factory.mktemp("fakes"), gpus=8)


@pytest.fixture
def fakes(attacked: Ordeal) -> Iterator[Ordeal]:
    """Real but for its trainings, which ``fakes.spec`` makes fake (group "fakes")."""
    attacked.ready()
    yield attacked
    attacked.ready()
    attacked.clear()
