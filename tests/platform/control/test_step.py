"""One step over whole snapshots: what is decided together, and what one fault leaves alone."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from lehr.control import step as control
from lehr.control.finalize import Finalize
from lehr.control.lifecycle import (
    ACTIVE,
    ENDED,
    TRANSITIONS,
    Desired,
    RunState,
    Situation,
    StateChange,
)
from lehr.control.queue import StartRun
from lehr.control.queue_entries import Active, Waiting
from lehr.control.reconcile import AttemptPhase, MarkLost, NodeSeen, OpenAttempt, StopAttempt
from lehr.control.resources import Gpu, Need, Node, NodeShare
from lehr.control.retries import Budgets, ExitReport, FinishedReport
from lehr.control.snapshot import OpenRun, Snapshot
from lehr.control.step import Fault, QueueOrder, Subject, step, subject_of
from lehr_testing.properties import examples
from lehr_testing.runs import exit_of

ONE_GPU = Need(1, 1, None)
queue_plan = control.queue.plan


def queued(name: str, number: int = 1, **changes) -> OpenRun:
    waiting = Waiting(name, number, ONE_GPU, name)
    return OpenRun(name, RunState.QUEUED, Desired.RUN, 0, waiting=replace(waiting, **changes))


def node(gpus: int = 1, **changes) -> Node:
    return Node("n1", tuple(Gpu(index, "gpu") for index in range(gpus)), **changes)


def kinds(actions) -> list[str]:
    return [type(action).__name__ for action in actions]


def test_cancelled_run_leaves_the_queue_and_the_next_one_takes_its_gpu():
    cancelled = replace(queued("a", 1), desired=Desired.CANCEL)
    actions = step(Snapshot(runs=[cancelled, queued("b", 2)], places=[node()]))
    assert actions == [
        StateChange("a", 0, RunState.QUEUED, RunState.CANCELLED, "cancel"),
        StartRun("b", (NodeShare("n1", (0,)),)),
        QueueOrder((), {}),
    ]


def test_gpu_of_a_lost_attempt_is_free_only_in_the_next_tick():
    attempt = OpenAttempt("a-1", ("n1",), current=True, dispatched=True, contacted=True)
    seen = NodeSeen("n1", alive=True, answered=True)
    holder = Active("a", (NodeShare("n1", (0,)),))
    snapshot = Snapshot(
        runs=[OpenRun("a", RunState.RUNNING, Desired.RUN, 1), queued("b", 2)],
        attempts=[attempt],
        members=[seen],
        places=[node()],
        holders=[holder],
    )
    assert kinds(step(snapshot)) == ["MarkLost", "QueueOrder"]


@pytest.mark.parametrize(("elapsed", "stops"), [(9.0, False), (11.0, True), (None, False)])
def test_time_limit_stops_a_running_run(elapsed, stops):
    run = OpenRun("a", RunState.RUNNING, Desired.RUN, 2, time_limit_s=10.0)
    attempt = OpenAttempt("a-2", ("n1",), current=True, in_flight=True, elapsed_s=elapsed)
    actions = step(Snapshot(runs=[run], attempts=[attempt]))
    moved = [one for one in actions if isinstance(one, StateChange)]
    assert [one.cause for one in moved] == (["time_limit"] if stops else [])


class _Odd(Exception):
    pass


def test_fault_of_one_run_is_its_own(monkeypatch):
    sound = control.apply_request

    def odd(run, elapsed_s):
        if run.id == "odd":
            raise _Odd
        return sound(run, elapsed_s)

    monkeypatch.setattr(control, "apply_request", odd)
    runs = [replace(queued(name), desired=Desired.CANCEL) for name in ("a", "odd", "c")]
    actions = step(Snapshot(runs=runs))
    [fault] = [one for one in actions if isinstance(one, Fault)]
    assert (fault.subject, type(fault.error)) == (Subject("run", "odd"), _Odd)
    assert [one.run_id for one in actions if isinstance(one, StateChange)] == ["a", "c"]


def test_waiting_run_that_cannot_be_placed_holds_up_no_other(monkeypatch):
    sound = control.queue.plan

    def odd(waiting, *args):
        if "odd" in {run.run_id for run in waiting}:
            raise _Odd
        return sound(waiting, *args)

    monkeypatch.setattr(control.queue, "plan", odd)
    runs = [queued(name, number) for number, name in enumerate(("odd", "b", "c"), 1)]
    actions = step(Snapshot(runs=runs, places=[node()]))
    [fault] = [one for one in actions if isinstance(one, Fault)]
    assert (fault.subject, type(fault.error)) == (Subject("run", "odd"), _Odd)
    assert [one.run_id for one in actions if isinstance(one, StartRun)] == ["b"]
    [order] = [one for one in actions if isinstance(one, QueueOrder)]
    assert order.order == ("c",)


@pytest.mark.parametrize(
    ("part", "name", "subject"),
    [
        (control.queue, "plan", Subject("queue", "")),
        (control.nodes, "failing", Subject("node", "")),
        (control, "stops", Subject("queue", "")),
    ],
)
def test_part_that_fails_for_all_leaves_the_decisions_on_each_run(monkeypatch, part, name, subject):
    def fail(*_):
        raise _Odd

    monkeypatch.setattr(part, name, fail)
    if name == "plan":
        # It fails for any two runs, so that none alone is at fault.
        sound = queue_plan
        monkeypatch.setattr(part, name, lambda w, *args: fail() if len(w) > 1 else sound(w, *args))
    runs = [replace(queued("a"), desired=Desired.CANCEL), queued("b", 2), queued("c", 3)]
    actions = step(Snapshot(runs=runs, ended=[exit_of("d")], places=[node()]))
    assert [one.subject for one in actions if isinstance(one, Fault)] == [subject]
    assert [one.run_id for one in actions if isinstance(one, StateChange)] == ["a"]
    assert [one.run_id for one in actions if isinstance(one, Finalize)] == ["d"]


# ------------------------------------------------------------------------------- any snapshot

states = st.sampled_from([state for state in RunState if state not in ENDED])
seconds = st.floats(0, 2_000)
NODES = ("n1", "n2", "n3")
flags = st.booleans()


@st.composite
def snapshots(draw) -> Snapshot:
    """Consistent as the loader makes them: ids are unique, holders are open attempts."""
    runs, attempts, ended, holders = [], [], [], []
    for number in range(1, draw(st.integers(1, 6)) + 1):
        name, state = f"r{number}", draw(states)
        # Of a run that is stopping the attempt never has the order to run.
        wishes = [one for one in Desired if one is not Desired.RUN or state != RunState.STOPPING]
        desired = draw(st.sampled_from(wishes))
        count = draw(st.integers(1, 3)) if state in ACTIVE else 0
        limit = draw(st.none() | seconds)
        need = Need(draw(st.integers(0, 2)), 1, None)
        waiting = Waiting(name, number, need) if state is RunState.QUEUED else None
        runs.append(OpenRun(name, state, desired, count, time_limit_s=limit, waiting=waiting))
        if state not in ACTIVE:
            continue
        places = draw(st.lists(st.sampled_from(NODES), min_size=1, max_size=2, unique=True))
        attempt = OpenAttempt(
            f"{name}-{count}",
            tuple(places),
            current=True,
            desired=desired,
            dispatched=draw(flags),
            in_flight=draw(flags),
            exited=draw(flags),
            contacted=draw(flags),
            since_contact_s=draw(seconds),
            since_request_s=draw(seconds),
            since_ended_s=draw(seconds),
            elapsed_s=draw(seconds),
        )
        attempts.append(attempt)
        if attempt.exited:
            code = draw(st.sampled_from([0, 1, None]))
            report = ExitReport(code=code, reason=draw(st.sampled_from(["", "node_lost", "?"])))
            outcome = draw(st.sampled_from(["completed", "stopped", "failed", None]))
            ended.append(
                exit_of(
                    name,
                    attempt=count,
                    situation=Situation(state, desired),
                    report=report,
                    finished=FinishedReport(outcome) if outcome else None,
                    budgets=Budgets(*(draw(st.integers(0, 2)) for _ in range(3))),
                    delivered=draw(flags),
                )
            )
        else:
            holders.append(Active(name, tuple(NodeShare(place, (0,)) for place in places)))
    ids = [attempt.id for attempt in attempts] + ["gone-1"]
    phases = st.sampled_from(AttemptPhase)
    members = [
        NodeSeen(
            name,
            alive=draw(flags),
            answered=draw(flags),
            attempts=draw(st.dictionaries(st.sampled_from(ids), phases, max_size=3)),
        )
        for name in NODES
    ]
    gpus = tuple(Gpu(index, "gpu") for index in range(2))
    places = [Node(name, gpus, usable=draw(flags), excluded=draw(flags)) for name in NODES]
    return Snapshot(
        runs=runs,
        attempts=attempts,
        ended=ended,
        members=members,
        membership_known=draw(flags),
        places=places,
        holders=holders,
    )


@settings(max_examples=examples(300), deadline=None)
@given(snapshots())
def test_every_step_keeps_the_rules(snapshot):
    actions = step(snapshot)
    assert actions == step(snapshot)
    assert not [one for one in actions if isinstance(one, Fault)]
    runs = {run.id: run for run in snapshot.runs}
    # One change of state for each run, and none that its state does not allow.
    moved = [one for one in actions if isinstance(one, Finalize | StateChange)]
    assert len({one.run_id for one in moved}) == len(moved)
    for one in moved:
        old = one.old
        assert old is runs[one.run_id].state
        for new in one.path if isinstance(one, Finalize) else (one.new,):
            assert new in TRANSITIONS[old]
            old = new
    # What starts was waiting, is not moved, and gets free GPUs of usable nodes, each once.
    busy = {
        (s.node, gpu) for holder in snapshot.holders for s in holder.placement for gpu in s.gpus
    }
    usable = {one.name for one in snapshot.places if one.usable and not one.excluded}
    for start in (one for one in actions if isinstance(one, StartRun)):
        assert runs[start.run_id].state is RunState.QUEUED
        assert start.run_id not in {one.run_id for one in moved}
        for share in start.placement:
            assert share.node in usable
            for gpu in share.gpus:
                assert (share.node, gpu) not in busy
                busy.add((share.node, gpu))
    # A run waits in the order, or starts, or changes its state.
    [order] = [one for one in actions if isinstance(one, QueueOrder)]
    started = {one.run_id for one in actions if isinstance(one, StartRun)}
    waiting = {i for i, run in runs.items() if run.waiting} - {one.run_id for one in moved}
    assert set(order.order) | started == waiting
    assert not set(order.order) & started
    # Silence alone ends nothing: a lost attempt has a node that answers or is gone.
    seen = {one.name: one for one in snapshot.members}
    for lost in (one for one in actions if isinstance(one, MarkLost)):
        [attempt] = [one for one in snapshot.attempts if one.id == lost.attempt_id]
        assert not attempt.in_flight
        assert not attempt.exited
        if lost.cause == "node_lost":
            assert snapshot.membership_known
        elif lost.cause == "shim_lost":
            assert any(seen[name].answered for name in attempt.nodes)
        else:
            assert lost.cause in {"no_contact", "never_started"}
    for stop in (one for one in actions if isinstance(one, StopAttempt)):
        assert all(stop.attempt_id in seen[name].attempts for name in stop.nodes)
    assert all(subject_of(one).kind in {"run", "queue", "node"} for one in actions)
