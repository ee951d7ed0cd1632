"""Nodes that end, by the real dispatcher on a real store; the agent is told what happened."""

from __future__ import annotations

import time

from lehr.cluster.exits import node_ends
from lehr.control.availability import MARGIN_S, NodeEnd
from lehr_testing.stores import ingest, line


def ends_in(bench, seconds, node="n1"):
    bench.store.nodes.set_until(node, bench.store.clock() + seconds)


def test_training_saves_before_the_end_of_its_node_and_resumes_elsewhere(bench):
    run, attempt = bench.running("long")
    ends_in(bench, MARGIN_S - 1)
    bench.tick()
    row = bench.store.runs.get(run)
    assert (row.state, row.cause) == ("stopping", "node_until")
    assert row.reason.startswith("node n1 is available until 2")
    assert bench.heartbeat(attempt, step=7)["orders"]["desired"] == "pause"
    bench.restart()
    path = "attempt-1/checkpoints/step-00000007"
    saved = line("checkpoint", step=7, path=path, size_bytes=1, digest="0" * 64, reason="stop")
    ingest(bench.store, attempt, saved, line("finished", outcome="stopped", step=7))
    bench.exited(attempt)
    bench.tick()
    row = bench.store.runs.get(run)
    assert (row.state, row.desired, row.cause) == ("queued", "run", "node_until")
    assert row.reason == "it was stopped at the end of its node, and has saved"
    assert (row.user_failures, row.infrastructure_failures, row.preemptions) == (0, 0, 0)
    bench.tick()
    assert bench.state(run) == ("queued", 1)
    reason = bench.store.runs.get(run).pending_reason
    assert "node n1 is available for too short a time: lehr node until n1" in reason

    bench.store.nodes.set_until("n1", None)
    bench.tick()
    assert bench.state(run) == ("starting", 2)
    assert bench.store.attempts.get(f"{run}-2").resume_from == path


def test_end_of_another_node_and_one_that_is_far_change_nothing(bench):
    run, _ = bench.running("long")
    ends_in(bench, MARGIN_S - 1, node="elsewhere")
    ends_in(bench, MARGIN_S + 60)
    bench.tick()
    assert bench.state(run) == ("running", 1)


def test_end_is_in_seconds_and_in_words(monkeypatch):
    monkeypatch.setenv("TZ", "UTC")
    time.tzset()
    end = 1_796_000_400.0
    assert node_ends({"n1": end}, end - MARGIN_S - 10.0) == {
        "n1": NodeEnd(10.0, "2026-11-30 01:00 UTC")
    }
