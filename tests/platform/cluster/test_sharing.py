"""Preemption and quotas by the real dispatcher on a real store; the agent is told what happened."""

from __future__ import annotations

import pytest

from lehr_testing.dispatching import Bench
from lehr_testing.stores import ingest, line


@pytest.fixture
def bench(tmp_path, monkeypatch):
    made = Bench(tmp_path, monkeypatch)
    yield made
    made.store.close()


def saves(bench, attempt, step=7):
    """What a training does on the order to pause: it saves, says so, and ends."""
    path = f"attempt-{attempt.rpartition('-')[2]}/checkpoints/step-{step:08d}"
    saved = line("checkpoint", step=step, path=path, size_bytes=1, digest="0" * 64, reason="stop")
    ingest(bench.store, attempt, saved, line("finished", outcome="stopped", step=step))
    bench.exited(attempt)
    bench.tick()


def test_higher_priority_pauses_a_run_that_resumes_where_it_saved(bench):
    low, attempt = bench.running("low", preemptible=True)
    high = bench.waiting("high", priority=5)
    bench.tick()
    assert bench.state(low) == ("stopping", 1)
    assert bench.store.runs.get(low).cause == "preempted"
    assert bench.store.runs.get(low).reason == "paused for high, which has priority 5"
    assert bench.heartbeat(attempt, step=7)["orders"]["desired"] == "pause"
    assert bench.state(high) == ("queued", 0)

    saves(bench, attempt)
    row = bench.store.runs.get(low)
    assert (row.state, row.desired, row.preemptions) == ("queued", "run", 1)
    assert row.cause == "preempted"
    assert "has saved" in (row.reason or "")
    assert bench.state(high) == ("starting", 1)

    bench.exited(f"{high}-1", code=0, finished={"outcome": "completed", "step": 1000})
    bench.tick()
    assert bench.state(high)[0] == "completed"
    assert bench.state(low) == ("starting", 2)
    resumes = bench.store.attempts.get(f"{low}-2").resume_from
    assert resumes == "attempt-1/checkpoints/step-00000007"


def test_run_beyond_the_quota_waits_until_the_quota_is_raised(bench):
    bench.store.quotas.put("small", 0, actor="user")
    run = bench.waiting("one", project="small")
    other = bench.waiting("two", project="other")
    bench.tick()
    assert bench.state(run) == ("queued", 0)
    assert "the quota of project small is 0 GPUs" in (
        bench.store.runs.get(run).pending_reason or ""
    )
    assert bench.state(other) == ("starting", 1)
    bench.exited(f"{other}-1", code=0, finished={"outcome": "completed", "step": 1000})
    bench.store.quotas.put("small", 1, actor="user")
    bench.tick()
    assert bench.state(run) == ("starting", 1)
