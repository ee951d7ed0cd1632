"""What stops a run for a time only: a pause after its storage failed it, and a node to avoid."""

from __future__ import annotations

import pytest

from lehr.cluster import exits
from lehr.cluster.exits import RecentEnds, nodes_to_avoid
from lehr.cluster.isolation import Isolation
from lehr.control.lifecycle import RunState
from lehr.control.nodes import AVOIDED_S, failing
from lehr_testing.dispatching import Bench
from lehr_testing.stores import begin, run_spec

FULL = {"code": None, "reason": "launch_failed", "log_tail": "/runs: No space left on device"}
BROKEN = {"code": None, "reason": "launch_failed", "log_tail": "/runs: Permission denied"}


def wait(bench: Bench, seconds: float) -> None:
    bench.clock.jumped += seconds
    bench.tick(seconds)


def retry(bench: Bench, run: str) -> None:
    row = bench.store.runs.get(run)
    assert bench.store.transitions.apply(
        run,
        old=RunState.FAILED,
        new=RunState.QUEUED,
        attempt=row.attempt,
        cause="retry",
        actor="user",
        set={"infrastructure_failures": 0},
    )


def test_run_without_space_is_tried_again_after_growing_pauses_and_then_fails(bench):
    run = bench.waiting()
    wait(bench, 1)
    for attempt, pause in enumerate((30, 60, 120), 1):
        assert bench.state(run) == ("starting", attempt)
        bench.exited(f"{run}-{attempt}", **FULL)
        wait(bench, 1)
        reason = f"waits {pause} s before it tries again: its last attempt ended as disk_full"
        assert bench.store.runs.get(run).pending_reason == reason
        due = bench.dispatcher._loader.load([]).waiting_in_s
        assert pause / 2 < due <= pause, "the dispatcher wakes up then"
        wait(bench, pause - 5)
        assert bench.state(run) == ("queued", attempt)
        wait(bench, 6)
    bench.exited(f"{run}-4", **FULL)
    wait(bench, 1)
    row = bench.store.runs.get(run)
    assert (row.state, row.cause) == ("failed", "disk_full")
    retry(bench, run)
    wait(bench, 1)
    assert bench.state(run) == ("starting", 5), "a person has asked for it: no pause"


def test_node_is_avoided_for_a_time_and_no_longer_when_a_person_retries(bench):
    run = bench.waiting()
    wait(bench, 1)
    for attempt in (1, 2, 3, 4):
        bench.exited(f"{run}-{attempt}", **BROKEN)
        wait(bench, 1)
    row = bench.store.runs.get(run)
    assert (row.state, row.cause) == ("failed", "launch_failed"), "its only node was used"
    assert nodes_to_avoid(bench.store, row) == {"n1": pytest.approx(AVOIDED_S, abs=5)}
    retry(bench, run)
    assert nodes_to_avoid(bench.store, bench.store.runs.get(run)) == {}


def test_node_on_which_a_run_hung_twice_is_used_again_only_if_no_other_can_hold_it(bench):
    run = bench.waiting()
    wait(bench, 1)
    hang = "hang at step 7: rank 0 on n1: it takes no step; its Python is in `f` (a/b.py:1)"
    for attempt in (1, 2):
        bench.exited(f"{run}-{attempt}", code=1, log_tail=f"error: {hang}")
        wait(bench, 1)
    assert bench.state(run) == ("starting", 3)
    moves = bench.store.transitions.of_run(run)
    assert [move.cause for move in moves if move.new == RunState.QUEUED][-2:] == ["hang", "hang"]
    assert hang in moves[-2].message
    assert moves[-1].message == "node n1 failed it twice, but no others can hold it"


@pytest.fixture
def ends(store):
    return RecentEnds(store, Isolation(lambda subject, reason: None))


@pytest.fixture
def end(store, ends):
    """Let an attempt end on a node."""
    runs = {}

    def end(node: str, reason: str = "", code: int | None = 0) -> None:
        if node not in runs:
            runs[node] = store.runs.create(run_spec(f"on-{node}")).id
        attempt = begin(store, runs[node], placement=[{"node": node, "gpus": [0]}])
        exited = {"reason": reason, "code": code}
        store.attempts.update(attempt.id, exit=exited, exited_at=store.clock())
        store.transitions.apply(
            runs[node],
            old=RunState.STARTING,
            new=RunState.QUEUED,
            attempt=attempt.number,
            cause="again",
            actor="dispatcher",
        )
        ends.noted.add([attempt.id])

    return end


def excluded(found):
    return [one.node for one in failing(found, {}, {"bad", "good"})]


def test_node_is_found_however_many_attempts_end_on_others(ends, end, monkeypatch):
    monkeypatch.setattr(exits, "AT_START", 2)
    end("bad", "gpu_busy", None)
    assert excluded(ends.take()) == []
    for _ in range(3):
        end("good")
    ends.take()
    end("bad", "gpu_busy", None)
    assert excluded(ends.take()) == ["bad"]
