"""Decide what one tick does: the actions that follow from a snapshot.

Pure: the same snapshot always gives the same actions. Nothing that is decided here depends on an
earlier tick, so a restarted server just continues.

A run whose state changes by an action of this step is left out of the queue until the next tick,
which follows at once.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from functools import partial
from typing import Literal, NamedTuple, TypeVar

from lehr.control import evaluations, nodes, queue, reconcile, rollouts, sweeps
from lehr.control.availability import stops, without_ending_nodes
from lehr.control.finalize import EndedAttempt, Finalize, finalize
from lehr.control.lifecycle import (
    NODE_UNTIL,
    PREEMPTED,
    Desired,
    RunState,
    StateChange,
    apply_request,
)
from lehr.control.preemption import preemptions
from lehr.control.snapshot import OpenRun, Snapshot

T = TypeVar("T")


class Subject(NamedTuple):
    """What an action is about. A fault of one subject is its own."""

    kind: Literal["run", "sweep", "rollout", "evaluations", "node", "queue"]
    id: str


@dataclass(frozen=True, slots=True)
class Fault:
    """Deciding about this subject failed."""

    subject: Subject
    what: str
    error: Exception


@dataclass(frozen=True, slots=True)
class QueueOrder:
    """Publish the order of the queue, and why runs wait."""

    order: tuple[str, ...]
    reasons: dict[str, str]  # Reasons that have changed, by run.


Action = (
    Finalize
    | StateChange
    | reconcile.Action
    | sweeps.Action
    | rollouts.Action
    | evaluations.Action
    | nodes.Exclude
    | queue.StartRun
    | QueueOrder
    | Fault
)


FINALIZING, REQUESTS, JUDGING, DECIDING, PLACING, PLANNING = (
    "finalizing it",
    "applying its requests",
    "judging its attempt",
    "deciding on it",
    "placing it",
    "planning it",
)
DECISIONS = frozenset({FINALIZING, REQUESTS, JUDGING, DECIDING, PLACING, PLANNING})
"""The parts of a step, as they are named in faults."""


def subject_of(action: Action) -> Subject:
    match action:
        case Fault():
            return action.subject
        case QueueOrder():
            return Subject("queue", "")
        case nodes.Exclude():
            return Subject("node", action.node)
        case sweeps.StopSweep() | sweeps.AddTrials() | sweeps.FollowTrunk():
            return Subject("sweep", action.sweep_id)
        case evaluations.Evaluate() | evaluations.CancelEvaluation():
            return Subject("evaluations", action.of.run_id)
        case Finalize() | StateChange() | queue.StartRun() | sweeps.PruneTrial():
            return Subject("run", action.run_id)
        case (
            rollouts.RecordVerdicts()
            | rollouts.SubmitStageRun()
            | rollouts.PassStage()
            | rollouts.FailRollout()
        ):
            return Subject("rollout", action.rollout_id)
        case _:
            return Subject("run", action.attempt_id.rpartition("-")[0])


def settled(action: Action) -> bool:
    """Return whether the next tick may repeat the action, and is not needed for it.

    The call that stops an attempt is repeated after a pause of its own; the order of the queue, if
    it changes no reason, only shows what is.
    """
    return isinstance(action, reconcile.StopAttempt) or (
        isinstance(action, QueueOrder) and not action.reasons
    )


def step(snapshot: Snapshot) -> list[Action]:
    """Return the actions to take now, in order.

    Exits come before requests: a run that ended by itself is not stopped. Reconciling comes before
    the queue.
    """
    elapsed = {one.id: one.elapsed_s for one in snapshot.attempts}
    seen = {node.name: node for node in snapshot.members}
    known = {one.id for one in snapshot.attempts} | set(snapshot.unreadable_attempts)

    def request(run: OpenRun) -> Iterable[Action]:
        change = apply_request(run, elapsed.get(f"{run.id}-{run.attempt}"))
        return [] if change is None else [change]

    def end(attempt: EndedAttempt) -> Iterable[Action]:
        finalized = finalize(attempt)
        return [] if finalized is None else [finalized]

    def judge(attempt: reconcile.OpenAttempt) -> Iterable[Action]:
        return reconcile.judge(
            attempt, seen, snapshot.timeouts, membership_known=snapshot.membership_known
        )

    actions: list[Action] = []
    actions += _each(snapshot.ended, lambda one: Subject("run", one.run_id), FINALIZING, end)
    ended = {one.run_id for one in actions if isinstance(one, Finalize)}
    waiting = [run for run in snapshot.runs if run.id not in ended]
    actions += _each(waiting, lambda run: Subject("run", run.id), REQUESTS, request)
    actions += _each(snapshot.attempts, lambda one: Subject("run", one.run_id), JUDGING, judge)
    actions += reconcile.orphans(known, seen.values())
    actions += _each(
        snapshot.sweeps, lambda one: Subject("sweep", one.id), DECIDING, sweeps.actions
    )
    actions += _each(
        snapshot.rollouts, lambda one: Subject("rollout", one.id), DECIDING, rollouts.actions
    )
    evaluated = snapshot.evaluated
    actions += _each(
        evaluated, lambda one: Subject("evaluations", one.run_id), DECIDING, evaluations.actions
    )
    usable = [node.name for node in snapshot.places if node.usable and not node.excluded]
    actions += _part(
        Subject("node", ""),
        DECIDING,
        lambda: nodes.failing(snapshot.ends, snapshot.readmitted, usable),
    )
    leaving = Finalize | StateChange | evaluations.CancelEvaluation
    changing = {one.run_id for one in actions if isinstance(one, leaving)}
    stopped = _part(Subject("queue", ""), DECIDING, lambda: _ending_nodes(snapshot, changing))
    actions += stopped
    changing |= {one.run_id for one in stopped if isinstance(one, StateChange)}
    exited = {run_id: sweep for run_id, sweep in snapshot.exited.items() if run_id not in ended}
    actions += _place(replace(snapshot, exited=exited), changing)
    return _without_losses(actions) if snapshot.held else actions


def _without_losses(actions: list[Action]) -> list[Action]:
    """Leave out what follows from a loss of attempts: another server may have them."""
    lost = {one.attempt_id for one in actions if isinstance(one, reconcile.MarkLost)}
    of_loss = (reconcile.MarkLost, reconcile.StopAttempt)
    return [
        one
        for one in actions
        if not isinstance(one, reconcile.Launch)
        and not (isinstance(one, of_loss) and one.attempt_id in lost)
    ]


def _ending_nodes(snapshot: Snapshot, changing: set[str]) -> list[StateChange]:
    """Return the runs that stop because a node is near its end. ``changing``: leave out."""
    runs = {
        (run.id, run.attempt): run.state
        for run in snapshot.runs
        if run.state in {RunState.STARTING, RunState.RUNNING}
        and run.desired is Desired.RUN
        and run.id not in changing
    }
    return [
        StateChange(
            one.run_id,
            one.attempt,
            runs[one.run_id, one.attempt],
            RunState.STOPPING,
            NODE_UNTIL,
            one.message,
        )
        for one in stops(snapshot.holders, snapshot.node_ends)
        if (one.run_id, one.attempt) in runs
    ]


def _place(snapshot: Snapshot, changing: set[str]) -> list[Action]:
    """Return what the queue decides. A run for which it raises is left out, as its own fault."""
    queue_itself = Subject("queue", "")
    found = _part(queue_itself, PLANNING, lambda: _queue(snapshot, changing))
    if not any(isinstance(one, Fault) for one in found):
        return found
    waiting = {run.id for run in snapshot.runs if run.waiting is not None} - changing
    faults: list[Action] = []
    for run_id in sorted(waiting):
        others = changing | waiting - {run_id}
        alone = _part(Subject("run", run_id), PLACING, partial(_queue, snapshot, others))
        faults += [one for one in alone if isinstance(one, Fault)]
    if not faults:
        return found
    odd = {subject_of(fault).id for fault in faults}
    return [*faults, *_part(queue_itself, PLANNING, lambda: _queue(snapshot, changing | odd))]


def _queue(snapshot: Snapshot, changing: set[str]) -> list[Action]:
    """Return what the queue starts, and why the rest waits. ``changing``: runs to leave out."""
    waiting = [
        run.waiting
        for run in snapshot.runs
        if run.state is RunState.QUEUED and run.waiting is not None and run.id not in changing
    ]
    if not waiting:
        return [QueueOrder((), {})]
    holders, places = list(snapshot.holders), [] if snapshot.held else list(snapshot.places)
    waiting = without_ending_nodes(waiting, snapshot.node_ends)
    plan = queue.plan(waiting, holders, places, snapshot.slots, snapshot.quotas, snapshot.exited)
    known = {run.id: run.pending_reason for run in snapshot.runs}
    was = {run.id: run.state for run in snapshot.runs}
    reasons = {
        run_id: why if snapshot.no_cluster is None else snapshot.no_cluster
        for run_id, why in plan.reasons.items()
    }
    reasons = {run_id: why for run_id, why in reasons.items() if known[run_id] != why}
    paused = [
        StateChange(
            one.run_id, one.attempt, was[one.run_id], RunState.STOPPING, PREEMPTED, one.message
        )
        for one in preemptions(
            plan.turn,
            plan.starts,
            [
                replace(one, preemptible=False, ending=True) if one.run_id in changing else one
                for one in holders
            ],
            places,
        )
    ]
    return [*plan.starts, *paused, QueueOrder(plan.order, reasons)]


def _each(
    items: Iterable[T],
    subject: Callable[[T], Subject],
    what: str,
    decide: Callable[[T], Iterable[Action]],
) -> list[Action]:
    """Decide on each item; one that raises becomes a ``Fault`` of its own."""
    found: list[Action] = []
    for item in items:
        try:
            found.extend(decide(item))
        except Exception as error:  # noqa: BLE001 - carried in the action, and logged there
            found.append(Fault(subject(item), what, error))
    return found


def _part(subject: Subject, what: str, decide: Callable[[], Iterable[Action]]) -> list[Action]:
    """Decide; if that raises, it is a ``Fault`` of ``subject``."""
    return _each([subject], lambda one: one, what, lambda _: decide())
