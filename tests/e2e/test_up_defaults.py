"""`lehr up` without options: the GPUs that it offers, and runs on GPUs that disappear."""

from __future__ import annotations

import shutil

import pytest

from lehr_testing import specs
from lehr_testing.fakes import FakeServer
from lehr_testing.waiting import until

pytestmark = [pytest.mark.slow, pytest.mark.timeout(600)]


@pytest.fixture
def fakes(tmp_path):
    """A server that is not started yet; `up` gives it no number of GPUs."""
    server = FakeServer(tmp_path / "home", gpus=8, corpus=specs.text_corpus(tmp_path / "corpus"))
    yield server
    server.down()


def up(server: FakeServer, *options: str) -> None:
    server.cli("up", "--port", str(server.port), *options)


def gpus(server: FakeServer, number: int) -> None:
    client = server.client()
    until(
        lambda: client.cluster().state == "up" and client.cluster().gpus_total == number,
        within_s=120,
        what=f"a cluster with {number} GPUs",
    )


def under_way(server: FakeServer, name: str):
    run = server.client().submit(server.spec(name, steps=400, CHECKPOINT_EVERY=1))
    until(lambda: (run.refresh().step or 0) >= 3, within_s=120, what="step 3")
    return run


@pytest.mark.skipif(shutil.which("nvidia-smi") is not None, reason="this machine may have GPUs")
def test_up_without_gpus_remembers_their_number(fakes):
    """That it offers eight logical ones the first time is in test_demo."""
    up(fakes, "--gpus", "2")
    gpus(fakes, 2)
    assert "2 GPUs busy (logical GPUs: training runs on the CPU)" in fakes.cli("status").stdout
    assert "already running" in fakes.cli("up", "--gpus", "2").stdout
    refused = fakes.cli("up", "--gpus", "4", check=False)
    assert "without --gpus 4" in refused.stderr
    run = under_way(fakes, "survivor")
    assert "1 training was saved" in fakes.cli("down").stdout
    up(fakes)
    gpus(fakes, 2)
    run = fakes.client().run(run.id)
    until(
        lambda: run.refresh().view.attempt == 2 and run.state == "running",
        within_s=120,
        what="the run to continue",
    )
    run.cancel()
    run.wait(timeout_s=60)
