"""Maintenance windows by the real dispatcher on a real store; the agent is told what happened."""

from __future__ import annotations

import time

import pytest

from lehr.cluster.maintenance import describe, windows_at
from lehr.store.records.maintenance import MaintenanceRow
from lehr_testing.dispatching import Bench
from lehr_testing.stores import ingest, line


@pytest.fixture
def bench(tmp_path, monkeypatch):
    made = Bench(tmp_path, monkeypatch)
    yield made
    made.store.close()


def declare(bench, starts_in, length=3600.0, node=None):
    return bench.store.maintenance.add(
        node=node,
        starts_at=bench.store.clock() + starts_in,
        duration_s=length,
        repeat=None,
        note="drivers",
        actor="user",
    )


def test_training_saves_at_the_begin_and_resumes_after_the_window(bench):
    run, attempt = bench.running("long")
    window = declare(bench, -1.0)
    bench.tick()
    row = bench.store.runs.get(run)
    assert (row.state, row.cause) == ("stopping", "maintenance")
    assert row.reason.startswith("stopped for the maintenance of all nodes, ")
    assert row.reason.endswith(": drivers")
    assert bench.heartbeat(attempt, step=7)["orders"]["desired"] == "pause"
    bench.restart()
    path = "attempt-1/checkpoints/step-00000007"
    saved = line("checkpoint", step=7, path=path, size_bytes=1, digest="0" * 64, reason="stop")
    ingest(bench.store, attempt, saved, line("finished", outcome="stopped", step=7))
    bench.exited(attempt)
    bench.tick()
    row = bench.store.runs.get(run)
    assert (row.state, row.desired, row.cause) == ("queued", "run", "maintenance")
    assert (row.user_failures, row.infrastructure_failures, row.preemptions) == (0, 0, 0)
    bench.tick()
    assert bench.state(run) == ("queued", 1)
    reason = bench.store.runs.get(run).pending_reason
    assert reason.startswith("waits for the end of the maintenance of all nodes, ")
    other = bench.waiting("other")
    bench.tick()
    assert bench.state(other) == ("queued", 0)

    bench.store.maintenance.remove(window.id)
    bench.tick()
    assert bench.state(run) == ("starting", 2)
    assert bench.store.attempts.get(f"{run}-2").resume_from == path


def test_program_that_never_gets_further_is_not_begun_again_for_ever(bench):
    program = {"module": "mine.train", "steps": 5}
    run, attempt = bench.running("long", trainer=program, train=None, retries={"preemption": 1})
    for state, preemptions in (("queued", 1), ("failed", 1)):
        window = declare(bench, -1.0)
        bench.tick()
        # A program that is stopped records so, saved or not.
        ingest(bench.store, attempt, line("finished", outcome="stopped", step=3))
        bench.exited(attempt)
        bench.tick()
        row = bench.store.runs.get(run)
        assert (row.state, row.cause, row.preemptions) == (state, "maintenance", preemptions)
        assert "without a report of a save" in row.reason
        assert ("it will begin again: it has no checkpoint" in row.reason) == (state == "queued")
        bench.store.maintenance.remove(window.id)
        bench.tick()
        attempt = f"{run}-2"


def test_program_that_saved_before_it_was_stopped_spends_nothing(bench):
    program = {"module": "mine.train", "steps": 5, "saves": ["out.pt"]}
    run, attempt = bench.running("long", trainer=program, train=None, retries={"preemption": 0})
    declare(bench, -1.0)
    bench.tick()
    path = "attempt-1/checkpoints/step-00000003"
    saved = line("checkpoint", step=3, path=path, size_bytes=1, digest="0" * 64, reason="stop")
    ingest(bench.store, attempt, saved)
    bench.exited(attempt, code=None, signal=9, reason="stopped")
    bench.tick(30.0)
    row = bench.store.runs.get(run)
    assert (row.state, row.cause, row.preemptions) == ("queued", "maintenance", 0)
    assert row.reason == "it was stopped for maintenance, and has saved"


def test_window_of_another_node_and_one_that_is_over_change_nothing(bench):
    run, _ = bench.running("long")
    declare(bench, -1.0, node="elsewhere")
    declare(bench, -100.0, length=50.0)
    bench.tick()
    assert bench.state(run) == ("running", 1)


def test_times_are_in_words(monkeypatch):
    monkeypatch.setenv("TZ", "UTC")
    time.tzset()
    row = MaintenanceRow(
        node="n1",
        starts_at=1_796_000_400.0,
        duration_s=14_400.0,
        note="",
        created_by="user",
        created_at=0.0,
    )
    begin = row.starts_at
    row.note, row.node = "new drivers", None
    assert describe(row, 0.0, 3600.0) == "of all nodes, 1970-01-01 00:00 to 01:00 UTC: new drivers"
    assert describe(row, 0.0, 90_000.0) == (
        "of all nodes, 1970-01-01 00:00 to 1970-01-02 01:00 UTC: new drivers"
    )
    [window] = windows_at([row], begin + 10.0)
    assert (window.starts_in_s, window.ends_in_s) == (-10.0, 14_390.0)
    assert windows_at([row], begin + 14_400.0) == []
