"""The real server (API, Ray head, agent) that tests share.

They are in the group "platform" (``pytest.mark.xdist_group``), so that no second worker starts another.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from lehr_testing.buckets import Bucket, s3_server
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


@pytest.fixture(scope="session")
def platform(tmp_path_factory: pytest.TempPathFactory) -> Iterator[FaultServer]:
    """The server behind ``server``."""
    from lehr_testing.faults.fault_server import fault_server

    yield from fault_server(tmp_path_factory.mktemp("platform"), gpus=8)


@pytest.fixture
def server(platform: FaultServer) -> Iterator[FaultServer]:
    """A real server for tests of the group "platform". Each starts with all 8 GPUs free.

    Specs are trained for real, or by a fake: ``fakes.faked``, ``server.spec``. Its parts may be killed.
    """
    platform.ready()
    yield platform
    platform.ready()
    platform.clear()
