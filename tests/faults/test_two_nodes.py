"""A Ray cluster of two nodes on one machine: gangs across both, complete or not at all."""

from __future__ import annotations

import contextlib
import os
import signal
from collections.abc import Iterator
from pathlib import Path

import pytest

from lehr.base import procfs
from lehr.node.attempt_dir import AttemptDir
from lehr_testing.fakes import FakeServer, fake_server, gone
from lehr_testing.faults.second_node import SecondNode, joined_node
from lehr_testing.server import alive, marked_processes
from lehr_testing.waiting import until

pytestmark = [pytest.mark.faults, pytest.mark.slow, pytest.mark.timeout(400)]


@pytest.fixture(scope="module")
def server(tmp_path_factory) -> Iterator[FakeServer]:
    yield from fake_server(tmp_path_factory.mktemp("server"), gpus=2)


@pytest.fixture
def second(server) -> Iterator[SecondNode]:
    yield from joined_node(server, gpus=2)


def gang(server: FakeServer, name: str, **more):
    return server.client().submit(
        server.spec(name, gpus=4, resources={"nodes": 2}, step_s=0.1, CHECKPOINT_EVERY=5, **more)
    )


def node_names(server: FakeServer) -> list[str]:
    return [node.name for node in server.client().cluster().nodes if node.alive]


def pending(run) -> str | None:
    return run.refresh().detail.pending_reason


def test_rank_lost_on_one_node_restarts_the_gang_on_both(server, second):
    run = gang(server, "rank-lost", steps=100)
    until(lambda: server.step(f"{run.id}-1") >= 6, within_s=120, what="the gang to train")
    before = marked_processes(f"{run.id}-1")
    [far] = [
        pid
        for pid in before
        if b"RANK=3\0" in Path(f"/proc/{pid}/environ").read_bytes()
        and b"\0LOCAL_RANK=1" in Path(f"/proc/{pid}/environ").read_bytes()
    ]
    os.kill(far, signal.SIGKILL)
    for pid in before:
        gone(pid, within_s=90)
    run.wait(timeout_s=180)
    assert (run.state, run.attempt) == ("completed", 2), run.reason
    assert list(run.history("train/loss")["step"]) == list(range(1, 101))


def shim_of(entry: AttemptDir) -> int:
    return int(procfs.read_json(entry.file("shim.json"))["pid"])


def test_lost_node_ends_its_gang_on_every_node(server, second):
    run = gang(server, "node-lost", steps=100_000)
    until(lambda: server.step(f"{run.id}-1") >= 6, within_s=120, what="the gang to train")
    processes = marked_processes(f"{run.id}-1")
    [entry] = [e for e in server.entries() if e.attempt_id == f"{run.id}-1" and "/n2/" in e.path]
    second.kill()
    # The node's power takes the shim and all that it started along.
    os.kill(shim_of(entry), signal.SIGKILL)
    for pid in procfs.marked(procfs.MARK, entry.launch()["nonce"]):
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)
    until(lambda: run.refresh().state == "queued", within_s=200, what="the run to wait again")
    for pid in processes:
        gone(pid, within_s=90)
    assert "node n2 was lost" in [e.message for e in run.events() if e.kind == "transition"][-1]
    # It comes back: the gang is placed again, and resumes.
    second.start()
    until(lambda: run.refresh().attempt == 2, within_s=200, what="the second attempt")
    until(lambda: server.step(f"{run.id}-2") > 6, within_s=120, what="the gang to train again")
    launch = procfs.read_json(str(server.home / "runs" / run.id / "attempt-2" / "launch.json"))
    assert launch["resume_from"].startswith("attempt-1/checkpoints/")
    run.cancel()
    run.wait(timeout_s=90)
    assert run.state == "cancelled"
    assert not [pid for pid in processes if alive(pid)]


def test_node_with_repeated_faults_is_excluded_until_it_is_readmitted(server, second):
    client = server.client()
    here = client.submit(server.spec("here", gpus=2, steps=100_000))
    until(lambda: here.refresh().state == "running", within_s=90, what="the first node to be full")
    first = here.detail.placement[0].node
    other = next(name for name in node_names(server) if name != first)
    run = client.submit(
        server.spec(
            "broken-gpu",
            steps=20,
            FAIL_AT=3,
            FAIL_TIMES=2,
            FAIL_TEXT="CUDA error: uncorrectable ECC error encountered",
        )
    )
    until(lambda: excluded(server, other), within_s=90, what="the node to be excluded")
    assert f"{run.id}-1 (ecc_error), {run.id}-2 (ecc_error)" in excluded(server, other)
    until(
        lambda: f"node {other} is excluded" in (pending(run) or ""), within_s=30, what="the reason"
    )
    assert run.refresh().attempt == 2
    # It is remembered by the record, not by the process.
    server.kill()
    server.up()
    assert excluded(server, other)
    assert run.refresh().state == "queued"
    server.cli("node", "readmit", other)
    run.wait(timeout_s=120)
    assert (run.state, run.attempt) == ("completed", 3), run.reason
    assert run.detail.placement == [] or run.detail.placement[0].node == other
    assert excluded(server, other) is None
    here.cancel()
    here.wait(timeout_s=60)


def excluded(server: FakeServer, name: str) -> str | None:
    [node] = [node for node in server.client().cluster().nodes if node.name == name]
    return node.excluded
