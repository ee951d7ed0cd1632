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
    from lehr_testing.faults.fault_server import FaultServer

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
    """For tests that leave it running (group "platform"). Each test starts with all GPUs free."""
    yield platform
    platform.clear()


@pytest.fixture(scope="session")
def running_server(tmp_path_factory: pytest.TempPathFactory, bucket: Bucket) -> Iterator[Server]:
    server = Server(tmp_path_factory.mktemp("restarted") / "home", gpus=2)
    server.environment.update(bucket.environment)
    yield from serve(server)


@pytest.fixture
def restarted(running_server: Server) -> Iterator[Server]:
    """For tests that kill its parts, or stop and start it (group "restarted").

    Its processes, and so its nodes, find the ``bucket`` by their environment.
    """
    running_server.ready()
    yield running_server
    running_server.ready()
    running_server.clear()


@pytest.fixture(scope="session")
def attacked(tmp_path_factory: pytest.TempPathFactory) -> Iterator[FaultServer]:
    from lehr_testing.faults.fault_server import fault_server

    yield from fault_server(tmp_path_factory.mktemp("fakes"), gpus=8)


@pytest.fixture
def fakes(attacked: FaultServer) -> Iterator[FaultServer]:
    """A real server with fake trainings, set by ``fakes.spec`` (group "fakes")."""
    attacked.ready()
    yield attacked
    attacked.ready()
    attacked.clear()
