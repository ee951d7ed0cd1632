"""Nodes that are available until a time, as pure decisions: who may start, and who stops when."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lehr.control.availability import MARGIN_S, NodeEnd, stops, too_short, without_ending_nodes
from lehr.control.due import due_in_s
from lehr.control.lifecycle import NODE_UNTIL, Desired, RunState, StateChange
from lehr.control.queue import StartRun
from lehr.control.queue_entries import Active, Waiting
from lehr.control.resources import Gpu, Need, Node, NodeShare
from lehr.control.snapshot import OpenRun, Snapshot
from lehr.control.step import QueueOrder, step

NAMES = ("n1", "n2")
NODES = tuple(Node(name, tuple(Gpu(i, "A100") for i in range(2))) for name in NAMES)
NEAR = NodeEnd(-10.0, "2026-12-01 18:00 UTC")


def waiting(run_id="r1", **changes) -> Waiting:
    return Waiting(**{"run_id": run_id, "number": 1, "need": Need(), "name": run_id, **changes})


def queued(run: Waiting) -> OpenRun:
    return OpenRun(run.run_id, RunState.QUEUED, Desired.RUN, 0, waiting=run)


def in_s(milliseconds: int) -> float:
    """Two times that differ by less than a rounding error would change their order as time passes."""
    return milliseconds / 1000


ends = st.dictionaries(
    st.sampled_from(NAMES),
    st.builds(NodeEnd, st.integers(-500_000, 1_000_000).map(in_s), st.just("18:00")),
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


@given(runs, ends)
def test_nothing_starts_where_the_end_is_near_or_would_cost_its_work(waits, node_ends):
    snapshot = Snapshot(runs=[queued(run) for run in waits], places=NODES, node_ends=node_ends)
    by_id = {run.run_id: run for run in waits}
    started = [action for action in step(snapshot) if isinstance(action, StartRun)]
    for start in started:
        run = by_id[start.run_id]
        for share in start.placement:
            if (end := node_ends.get(share.node)) is not None:
                assert end.stops_in_s > 0
                lasts = float("inf") if run.time_limit_s is None else run.time_limit_s
                assert run.can_save or lasts + MARGIN_S <= end.stops_in_s
    # Each run that waits has a reason.
    [order] = [action for action in step(snapshot) if isinstance(action, QueueOrder)]
    assert set(order.order) == by_id.keys() - {start.run_id for start in started}
    assert set(order.reasons) == set(order.order)


@given(runs, ends, st.floats(0, 1))
def test_nothing_new_is_decided_before_the_alarm(waits, node_ends, share):
    snapshot = Snapshot(
        runs=[queued(run) for run in waits], places=NODES, node_ends=node_ends, estimates_in_s=1e9
    )
    due = due_in_s(snapshot)
    if due is None:
        return
    passed = share * (due - 0.002)
    later = {
        node: replace(end, stops_in_s=end.stops_in_s - passed) for node, end in node_ends.items()
    }
    assert step(replace(snapshot, node_ends=later)) == step(snapshot) or due <= 0.1


def test_run_that_cannot_save_starts_only_if_its_limit_ends_it_before():
    coming = dict.fromkeys(NAMES, NodeEnd(MARGIN_S + 100.0, "18:00"))
    for limit, starts in ((99.0, True), (101.0, False), (None, False)):
        run = waiting(can_save=False, time_limit_s=limit)
        snapshot = Snapshot(runs=[queued(run)], places=NODES, node_ends=coming, estimates_in_s=1e9)
        actions = step(snapshot)
        assert isinstance(actions[0], StartRun) == starts, limit
        if starts:
            assert due_in_s(snapshot) == pytest.approx(1.0, abs=0.01)
    [order] = actions
    assert order.reasons["r1"] == (
        "waits for 1 GPU (nodes n1, n2 are available for too short a time: lehr node until n1)"
    )
    assert not too_short(coming["n1"], waiting())
    assert without_ending_nodes([waiting()], {}) == [waiting()]


def test_node_that_ends_leaves_the_others():
    small, large = waiting(need=Need(2)), waiting("r2", need=Need(4, 2), number=2)
    snapshot = Snapshot(runs=[queued(small), queued(large)], places=NODES, node_ends={"n1": NEAR})
    actions = step(snapshot)
    [start] = [action for action in actions if isinstance(action, StartRun)]
    assert (start.run_id, start.placement) == ("r1", (NodeShare("n2", (0, 1)),))
    [order] = [action for action in actions if isinstance(action, QueueOrder)]
    assert "node n1 is available for too short a time" in order.reasons["r2"]


def running(state=RunState.RUNNING, desired=Desired.RUN) -> Snapshot:
    return Snapshot(
        runs=[OpenRun("r1", state, desired, 2)],
        holders=[Active("r1", (NodeShare("n1", (0,)),), attempt=2)],
        places=NODES,
        node_ends={"n1": NEAR},
    )


@pytest.mark.parametrize("state", [RunState.RUNNING, RunState.STARTING])
def test_run_on_a_node_that_ends_is_stopped_once(state):
    [change] = [action for action in step(running(state)) if isinstance(action, StateChange)]
    text = "node n1 is available until 2026-12-01 18:00 UTC"
    assert change == StateChange("r1", 2, state, RunState.STOPPING, NODE_UNTIL, text)
    for snapshot in (
        running(RunState.STOPPING),
        replace(running(), node_ends={"n1": NodeEnd(100.0, "18:00")}),
        replace(running(), node_ends={"n2": NEAR}),
    ):
        assert [action for action in step(snapshot) if isinstance(action, StateChange)] == []
    [cancel] = [
        action
        for action in step(running(desired=Desired.CANCEL))
        if isinstance(action, StateChange)
    ]
    assert cancel.cause == "cancel"


def test_orphan_without_an_attempt_is_left_to_reconciliation():
    assert stops([Active("r1-2", (NodeShare("n1", (0,)),))], {"n1": NEAR}) == []
