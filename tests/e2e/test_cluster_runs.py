"""Runs through the real control plane (HTTP, Ray, agent, shims) with a trainer made for tests."""

from __future__ import annotations

import pytest

from lehr_testing.fakes import FakeServer, gone
from lehr_testing.server import marked_processes
from lehr_testing.waiting import until

pytestmark = [
    pytest.mark.slow,
    pytest.mark.timeout(300),
    pytest.mark.xdist_group("platform"),
]


def busy(server: FakeServer) -> set[str]:
    nodes = server.client().cluster().nodes
    return {gpu.run_id for node in nodes for gpu in node.gpus if gpu.run_id}


def running(run, *, step: int = 1):
    def look():
        run.refresh()
        return run.state == "running" and (run.step or 0) >= step

    until(look, within_s=90, what=f"{run.name} to be past step {step}")


def test_trials_over_eight_gpus_never_share_a_gpu(server):
    client = server.client()
    runs = [client.submit(server.spec(f"trial-{n}", steps=3)) for n in range(24)]
    for run in runs:
        run.wait(timeout_s=200)
    assert [run.state for run in runs] == ["completed"] * 24
    assert server.violations() == ""
    seen = server.witnessed()
    assert set(seen) <= set(range(8))
    ours = sorted(f"{run.id}-1" for run in runs)
    attempts = [attempt for on_gpu in seen.values() for attempt in on_gpu]
    assert sorted(attempt for attempt in attempts if attempt in ours) == ours
    for run in runs:
        [placed] = run.detail.placement
        assert f"{run.id}-1" in seen[placed.gpu]


def test_a_run_can_be_cancelled_before_during_and_after_its_dispatch(server):
    client = server.client()
    holders = [client.submit(server.spec(f"holder-{n}", steps=10_000)) for n in range(8)]
    queued = client.submit(server.spec("queued", steps=3))
    for holder in holders:
        running(holder)
    assert queued.refresh().state == "queued"
    queued.cancel()
    queued.wait(timeout_s=30)
    assert (queued.state, queued.attempt) == ("cancelled", 0)
    for holder in holders:
        holder.cancel()
    for holder in holders:
        holder.wait(timeout_s=60)
    # Cancelled at once after submission, whatever the dispatcher is at just then.
    quick = [client.submit(server.spec(f"quick-{n}", steps=10_000)) for n in range(8)]
    for run in quick:
        run.cancel()
    for run in quick:
        run.wait(timeout_s=60)
        assert run.state == "cancelled"
    until(lambda: not busy(server), within_s=30, what="all GPUs to be free")
    for run in quick:
        assert not marked_processes(f"{run.id}-1")


def test_a_time_limit_stops_the_run_with_a_checkpoint(server):
    run = server.client().submit(
        server.spec("limited", steps=10_000, CHECKPOINT_EVERY=100_000, time_limit_s=2)
    )
    run.wait(timeout_s=90)
    assert run.state == "failed"
    assert run.reason == "stopped at its time limit of 2 s, and saved"
    assert [c.reason for c in run.checkpoints()] == ["stop"]


def test_leftover_processes_are_ended_before_their_gpu_is_reused(server):
    run = server.client().submit(server.spec("leaver", steps=120, CHILDREN=4))
    running(run)
    left = marked_processes(f"{run.id}-1")
    assert len(left) == 5
    run.wait(timeout_s=90)
    assert run.state == "completed"
    for pid in left:
        gone(pid, within_s=1)
