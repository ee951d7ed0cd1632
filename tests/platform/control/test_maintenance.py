"""Maintenance windows as pure decisions: who may start, who stops, when the next one is due."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lehr.control.due import due_in_s
from lehr.control.error_patterns import Budget
from lehr.control.lifecycle import Desired, RunState
from lehr.control.maintenance import (
    MAINTENANCE,
    MARGIN_S,
    PERIODS_S,
    Window,
    closes,
    occurrence,
    outside_windows,
    stops,
)
from lehr.control.outcome import outcome
from lehr.control.queue import StartRun
from lehr.control.queue_entries import Active, Waiting
from lehr.control.requests import StateChange
from lehr.control.resources import Gpu, Need, Node, NodeShare
from lehr.control.retries import Budgets, ExitReport, FinishedReport
from lehr.control.snapshot import OpenRun, Snapshot
from lehr.control.step import QueueOrder, step

NAMES = ("n1", "n2")
NODES = tuple(Node(name, tuple(Gpu(i, "A100") for i in range(2))) for name in NAMES)
OPEN = Window(None, -10.0, 90.0, "of all nodes, 02:00 to 04:00 UTC: drivers")
COMING = Window(None, 100.0, 200.0, "of all nodes, 02:00 to 04:00 UTC")


def waiting(run_id="r1", **changes) -> Waiting:
    return Waiting(**{"run_id": run_id, "number": 1, "need": Need(), "name": run_id, **changes})


def queued(run: Waiting) -> OpenRun:
    return OpenRun(run.run_id, RunState.QUEUED, Desired.RUN, 0, waiting=run)


def in_s(milliseconds: int) -> float:
    """Two times that differ by less than a rounding error would change their order as time passes."""
    return milliseconds / 1000


windows = st.lists(
    st.builds(
        lambda node, start, length: Window(node, start, start + length, f"of {node}"),
        st.sampled_from([None, *NAMES]),
        st.integers(-500_000, 1_000_000).map(in_s),
        st.integers(1_000, 500_000).map(in_s),
    ).filter(lambda one: one.ends_in_s > 0),
    max_size=4,
)
runs = st.lists(
    st.builds(
        waiting,
        run_id=st.uuids().map(str),
        number=st.integers(1, 1000),
        need=st.sampled_from([Need(), Need(2), Need(4, 2), Need(0)]),
        can_save=st.booleans(),
        time_limit_s=st.none() | st.floats(1, 600),
    ),
    max_size=6,
)


@given(runs, windows)
def test_nothing_starts_where_a_window_is_open_or_would_cost_its_work(waits, closed):
    snapshot = Snapshot(runs=[queued(run) for run in waits], places=NODES, windows=closed)
    by_id = {run.run_id: run for run in waits}
    started = [one for one in step(snapshot) if isinstance(one, StartRun)]
    for one in started:
        run = by_id[one.run_id]
        for window in closed:
            if not any(window.covers(share.node) for share in one.placement):
                continue
            assert not window.open
            lasts = float("inf") if run.time_limit_s is None else run.time_limit_s
            assert run.can_save or lasts + MARGIN_S <= window.starts_in_s
    # Each run that waits has a reason.
    [order] = [one for one in step(snapshot) if isinstance(one, QueueOrder)]
    assert set(order.order) == by_id.keys() - {one.run_id for one in started}
    assert set(order.reasons) == set(order.order)


@given(runs, windows)
def test_windows_only_keep_runs_back(waits, closed):
    allowed, why = outside_windows(waits, NODES, closed)
    assert sorted([run.run_id for run in allowed] + list(why)) == sorted(r.run_id for r in waits)
    assert [replace(run, closed_nodes=frozenset()) for run in allowed] == [
        run for run in waits if run.run_id not in why
    ]
    for run in waits:
        if not any(closes(window, run) for window in closed):
            assert run in allowed
    for reason in why.values():
        assert reason.startswith("waits for the end of the maintenance of ")


@given(runs, windows, st.floats(0, 1))
def test_nothing_new_is_decided_before_the_alarm(waits, closed, share):
    snapshot = Snapshot(
        runs=[queued(run) for run in waits], places=NODES, windows=closed, estimates_in_s=1e9
    )
    due = due_in_s(snapshot)
    if due is None:
        assert not closed
        return
    passed = share * (due - 0.002)
    later = [
        replace(one, starts_in_s=one.starts_in_s - passed, ends_in_s=one.ends_in_s - passed)
        for one in closed
    ]
    assert step(replace(snapshot, windows=later)) == step(snapshot) or due <= 0.1


@given(
    st.floats(0, 1e6),
    st.floats(1, 80_000),
    st.sampled_from([None, *PERIODS_S]),
    st.floats(0, 3e6),
)
def test_occurrence_is_the_current_or_the_next_one(start, length, repeat, now):
    found = occurrence(start, length, repeat, now)
    if found is None:
        assert repeat is None
        assert now >= start + length
        return
    begin, end = found
    assert end > now
    assert end - begin == pytest.approx(length, abs=1e-3)
    if repeat is None:
        assert begin == start
    else:
        times = (begin - start) / PERIODS_S[repeat]
        assert times >= 0
        assert times == pytest.approx(round(times), abs=1e-6)
        # No earlier one is still to come.
        assert begin == start or end - PERIODS_S[repeat] <= now + 1e-6


def test_run_starts_again_by_itself_when_the_window_is_over():
    snapshot = Snapshot(runs=[queued(waiting())], places=NODES, windows=[OPEN], estimates_in_s=1e9)
    [order] = step(snapshot)
    assert order == QueueOrder(("r1",), {"r1": f"waits for the end of the maintenance {OPEN.text}"})
    assert due_in_s(snapshot) == pytest.approx(90.0, abs=0.01)
    [start, _] = step(replace(snapshot, windows=[]))
    assert isinstance(start, StartRun)


def test_run_that_cannot_save_starts_only_if_its_limit_ends_it_before():
    coming = replace(COMING, starts_in_s=MARGIN_S + 100.0, ends_in_s=MARGIN_S + 200.0)
    for limit, starts in ((99.0, True), (101.0, False), (None, False)):
        run = waiting(can_save=False, time_limit_s=limit)
        snapshot = Snapshot(runs=[queued(run)], places=NODES, windows=[coming], estimates_in_s=1e9)
        actions = step(snapshot)
        assert isinstance(actions[0], StartRun) == starts, limit
        if starts:
            assert due_in_s(snapshot) == pytest.approx(1.0, abs=0.01)
    _, why = outside_windows([run], NODES, [COMING])
    assert why["r1"] == (
        f"waits for the end of the maintenance {COMING.text}: it may still run when that begins "
        "(it has no time limit), and saves no checkpoint"
    )
    assert outside_windows([waiting()], NODES, [COMING]) == ([waiting()], {})


def test_window_of_a_node_leaves_the_others():
    one = replace(OPEN, node="n1")
    small, large = waiting(need=Need(2)), waiting("r2", need=Need(4, 2), number=2)
    actions = step(Snapshot(runs=[queued(small), queued(large)], places=NODES, windows=[one]))
    [start] = [action for action in actions if isinstance(action, StartRun)]
    assert (start.run_id, start.placement) == ("r1", (NodeShare("n2", (0, 1)),))
    [order] = [action for action in actions if isinstance(action, QueueOrder)]
    assert order.reasons["r2"].startswith("waits for the end of the maintenance")


def running(state=RunState.RUNNING, desired=Desired.RUN) -> Snapshot:
    return Snapshot(
        runs=[OpenRun("r1", state, desired, 2)],
        holders=[Active("r1", (NodeShare("n1", (0,)),), attempt=2)],
        places=NODES,
        windows=[OPEN],
    )


@pytest.mark.parametrize("state", [RunState.RUNNING, RunState.STARTING])
def test_run_on_a_node_of_an_open_window_is_stopped_once(state):
    [change] = [one for one in step(running(state)) if isinstance(one, StateChange)]
    text = f"stopped for the maintenance {OPEN.text}"
    assert change == StateChange("r1", 2, state, RunState.STOPPING, MAINTENANCE, text)
    for snapshot in (
        running(RunState.STOPPING),
        replace(running(), windows=[COMING]),
        replace(running(), windows=[replace(OPEN, node="n2")]),
    ):
        assert [one for one in step(snapshot) if isinstance(one, StateChange)] == []
    [cancel] = [
        one for one in step(running(desired=Desired.CANCEL)) if isinstance(one, StateChange)
    ]
    assert cancel.cause == "cancel"


def test_orphan_without_an_attempt_is_left_to_reconciliation():
    assert stops([Active("r1-2", (NodeShare("n1", (0,)),))], [OPEN]) == []


def maintained(finished, *, preemption=0, **how):
    return outcome(
        desired=Desired.PAUSE,
        time_limit_s=None,
        over_time_limit=False,
        maintenance=True,
        ended=ExitReport(code=0),
        finished=finished,
        budgets=Budgets(user=0, infrastructure=0, preemption=preemption),
        **how,
    )


STOPPED = FinishedReport("stopped", step=5)
UNSAVED = FinishedReport("stopped", step=5, saved=False)


@pytest.mark.parametrize(
    ("finished", "how", "state", "cause"),
    [
        (STOPPED, {}, RunState.QUEUED, MAINTENANCE),
        (UNSAVED, {"progressed": True}, RunState.QUEUED, MAINTENANCE),
        (None, {"progressed": True}, RunState.QUEUED, MAINTENANCE),
        (FinishedReport("completed", step=9), {}, RunState.COMPLETED, "completed"),
        (FinishedReport("failed", cause="nan_loss"), {}, RunState.FAILED, "nan_loss"),
    ],
)
def test_stopped_run_that_saved_is_queued_again_without_spending_a_retry(
    finished, how, state, cause
):
    found = maintained(finished, **how)
    assert (found.state, found.cause, found.spends) == (state, cause, Budget.NONE)


@pytest.mark.parametrize("finished", [None, UNSAVED])
def test_stopped_run_that_did_not_get_further_spends_a_retry_of_preemption(finished):
    found = maintained(finished, preemption=1)
    assert (found.state, found.cause) == (RunState.QUEUED, MAINTENANCE)
    assert found.spends is Budget.PREEMPTION
    assert "ended without a report of a save" in found.message
    spent = maintained(finished, preemption=0)
    assert (spent.state, spent.cause, spent.spends) == (RunState.FAILED, MAINTENANCE, Budget.NONE)
    assert spent.message == (
        "it was stopped for maintenance without a report of a save; no retry is left for this kind of "
        "failure (preemption)"
    )
