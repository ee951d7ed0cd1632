"""Apply the actions of a tick. This is the only place where a tick has effects."""

from __future__ import annotations

import logging
import math
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from functools import partial
from typing import Any, NamedTuple

from structlog.contextvars import bound_contextvars

from lehr.analysis.gates import Judgement
from lehr.base import home as homes
from lehr.cluster.exits import EXCLUDED
from lehr.cluster.isolation import Isolation
from lehr.cluster.launcher import Launcher
from lehr.cluster.membership import Cluster
from lehr.control import evaluations, nodes, queue, reconcile, rollouts, sweeps
from lehr.control.exits import listed_exit, synthetic_exit
from lehr.control.finalize import Finalize
from lehr.control.lifecycle import Desired, RunState, StateChange
from lehr.control.retries import internal
from lehr.control.step import DECISIONS, Action, Fault, QueueOrder, Subject, subject_of
from lehr.errors import Conflict
from lehr.store import Store
from lehr.store.ids import attempt_id, run_of
from lehr.store.scores import report_scores
from lehr.store.tables import GateVerdict

log = logging.getLogger(__name__)

DISPATCHER = "dispatcher"  # The actor of the transitions that a tick makes.


class Applied(NamedTuple):
    changed: list[Subject]  # Their record has changed, so further actions may follow.
    failed: list[Subject]  # Deciding or acting failed.


@dataclass(eq=False, repr=False)
class Executor:
    """Applies actions, each fenced: if the record has changed meanwhile, nothing happens."""

    store: Store
    cluster: Cluster
    launcher: Launcher
    isolation: Isolation
    note_end: Callable[[str], None]  # Called with the id of an attempt that has ended.
    queue_order: tuple[str, ...] = field(default=(), init=False)

    def apply(self, actions: Sequence[Action]) -> Applied:
        """Apply the actions in order.

        A fault of one action concerns its subject alone. If it lasts, ``give_up`` ends the subject.
        """
        faults = [action for action in actions if isinstance(action, Fault)]
        self.isolation.forget_others(DECISIONS, {fault.subject for fault in faults})
        applied = Applied([], [])
        for action in actions:
            subject = subject_of(action)
            if isinstance(action, Fault):
                self.isolation.failed(subject, action.what, action.error)
                applied.failed.append(subject)
                continue
            act = partial(self._apply, action, subject, applied)
            with bound_contextvars(**_attempt_fields(action)):
                done = self.isolation.do(subject, f"applying {type(action).__name__}", act)
            if not done:
                applied.failed.append(subject)
        return applied

    def _apply(self, action: Action, subject: Subject, applied: Applied) -> None:
        if self._carry_out(action):
            applied.changed.append(subject)

    def _carry_out(self, action: Action) -> bool:
        """Carry out an action. Return whether the next tick should check its subject at once."""
        match action:
            case Finalize():
                return finalize(self.store, action)
            case StateChange():
                return self.store.transitions.apply(
                    action.run_id,
                    old=action.old,
                    new=action.new,
                    attempt=action.attempt,
                    cause=action.cause,
                    message=action.message,
                    actor=DISPATCHER,
                )
            case reconcile.Launch():
                attempt = self.store.attempts.get(action.attempt_id)
                self.launcher.launch(self.store.runs.get(attempt.run_id), attempt)
            case reconcile.Adopt():
                log.info("attempt %s is running: adopted", action.attempt_id)
                at = self.store.clock()
                self.store.attempts.update(action.attempt_id, dispatched_at=at)
            case reconcile.StopAttempt():
                self.launcher.stop(action)
            case reconcile.MarkLost():
                log.warning("attempt %s is lost: %s", action.attempt_id, action.message)
                at = self.store.clock()
                note = synthetic_exit(action.cause, action.message, at, action.node)
                return self._record_exit(action.attempt_id, note)
            case reconcile.RecordExit():
                return self._record_exit(action.attempt_id, self._listed_exit(action.attempt_id))
            case reconcile.CloseAttempt():
                report_scores(self.store, run_of(action.attempt_id))
                self.store.attempts.close(action.attempt_id)
            case queue.StartRun():
                self.launcher.begin(action)
            case QueueOrder():
                self.queue_order = action.order
                self.store.runs.set_pending_reasons(action.reasons)
            case nodes.Exclude():
                if self.store.nodes.note(action.node, EXCLUDED, action.message, actor=DISPATCHER):
                    log.warning("node %s is excluded: %s", action.node, action.message)
            case (
                sweeps.StopSweep() | sweeps.PruneTrial() | sweeps.AddTrials() | sweeps.FollowTrunk()
            ):
                return self._apply_to_sweep(action)
            case (
                rollouts.RecordVerdicts()
                | rollouts.SubmitStageRun()
                | rollouts.PassStage()
                | rollouts.FailRollout()
            ):
                return self._apply_to_rollout(action)
            case evaluations.Evaluate():
                runs = self.store.runs
                run = runs.get(action.of.run_id)
                runs.create(
                    action.spec,
                    actor=DISPATCHER,
                    submitted_by=run.submitted_by,
                    provenance=runs.provenance(run),
                    resume_from=str(homes.runs_dir(self.store.home) / run.id / action.path),
                    forked_from=run.id,
                    evaluates=str(action.of),
                )
                return True
            case evaluations.CancelEvaluation():
                with suppress(Conflict):  # It has ended meanwhile.
                    requests = self.store.requests
                    requests.set_desired(action.run_id, Desired.CANCEL, actor=DISPATCHER)
        return False

    def _record_exit(self, attempt_id: str, note: Mapping[str, Any]) -> bool:
        self.launcher.record_exit(attempt_id, note)
        self.note_end(attempt_id)
        return True

    def _listed_exit(self, attempt_id: str) -> dict[str, Any]:
        attempt = self.store.attempts.get(attempt_id)
        members = self.cluster.members()
        names = [str(share["node"]) for share in attempt.placement]
        listed = [members[name].attempts.get(attempt.id) for name in names]
        reports = [None if one is None else one.exit for one in listed]
        return listed_exit(attempt.exit or {}, reports)

    def _apply_to_sweep(self, action: sweeps.Action) -> bool:
        progress = self.store.sweep_progress
        match action:
            case sweeps.StopSweep():
                stopped = progress.stop(action.sweep_id, action.reason, actor="sweep")
                if stopped:
                    log.warning("sweep %s stops: %s", action.sweep_id, action.reason)
                return stopped
            case sweeps.PruneTrial():
                pruned = self.store.requests.prune(action.run_id, action.attempt, action.message)
                if pruned:
                    log.info("run %s is pruned: %s", action.run_id, action.message)
                return pruned
            case sweeps.AddTrials():
                return progress.add_trials(
                    action.sweep_id, action.trials, known=action.known, actor="sweep"
                )
            case sweeps.FollowTrunk():
                return progress.follow_trunk(action, actor="sweep")

    def _apply_to_rollout(self, action: rollouts.Action) -> bool:
        progress = self.store.rollout_progress
        match action:
            case rollouts.RecordVerdicts():
                rows = [_row(one) for one in action.judgements]
                return progress.record_verdicts(action.rollout_id, action.stage, rows) > 0
            case rollouts.SubmitStageRun():
                return self._submit_stage_run(action)
            case rollouts.PassStage():
                log.info("rollout %s: stage %s has passed", action.rollout_id, action.name)
                return progress.pass_stage(action.rollout_id, action.stage)
            case rollouts.FailRollout():
                log.warning(
                    "rollout %s stops at stage %d: %s",
                    action.rollout_id,
                    action.stage,
                    action.reason,
                )
                return progress.end(action.rollout_id, "failed", action.reason, stage=action.stage)

    def _submit_stage_run(self, action: rollouts.SubmitStageRun) -> bool:
        submit = partial(
            self.store.rollout_progress.submit_run,
            action.rollout_id,
            action.stage,
            action.role,
            action.spec,
        )
        point = action.resumes
        if point is None:
            return submit() is not None
        fork = {
            "run": point.run_id,
            "name": point.run_name,
            "attempt": point.attempt,
            "step": point.step,
            "digest": point.digest,
            "changes": {},
        }
        run = submit(resume_from=point.path, forked_from=point.run_id, provenance={"fork": fork})
        return run is not None


def _attempt_fields(action: Action) -> dict[str, str]:
    """Return the fields of log lines about the attempt that an action concerns, if it is of one."""
    match action:
        case Finalize() | StateChange() | sweeps.PruneTrial():
            # A run that has not started has no attempt yet.
            return {"attempt": f"{action.run_id}-{action.attempt}"} if action.attempt else {}
        case (
            reconcile.Launch()
            | reconcile.Adopt()
            | reconcile.StopAttempt()
            | reconcile.MarkLost()
            | reconcile.RecordExit()
            | reconcile.CloseAttempt()
        ):
            return {"attempt": action.attempt_id}
        case _:
            return {}


def finalize(store: Store, action: Finalize) -> bool:
    """Carry out the transitions of an exit. Return False if the run had changed meanwhile."""
    report_scores(store, action.run_id, action.state)  # First, so that a crash repeats it.
    state, changes = action.old, dict[str, float | None](action.changes)
    if state is RunState.EXTERNAL:  # It may have ended days ago, and was only reported now.
        attempt = store.attempts.get(attempt_id(action.run_id, action.attempt))
        changes["ended_at"] = attempt.exited_at
    for new in action.path:
        last = new is action.state
        moved = store.transitions.apply(
            action.run_id,
            old=state,
            new=new,
            attempt=action.attempt,
            cause=action.cause,
            message=action.message if last else None,
            actor=DISPATCHER,
            set=changes if last else None,
        )
        if not moved:
            return False
        state = new
    log.info(
        "attempt %s-%d ended: its run is %s", action.run_id, action.attempt, action.state.value
    )
    return True


def give_up(store: Store, subject: Subject, reason: str) -> None:
    """End a run, a sweep or a rollout that the server cannot handle."""
    cause = internal(reason)
    if subject.kind == "run":
        _give_up_run(store, subject.id, cause.name, cause.message)
    elif subject.kind == "sweep":
        store.sweep_progress.stop(subject.id, cause.message, actor=DISPATCHER)
    elif subject.kind == "rollout":
        store.rollout_progress.end(subject.id, "failed", cause.message, actor=DISPATCHER)


def _give_up_run(store: Store, run_id: str, cause: str, message: str) -> None:
    """Fail the run. Its processes are then ended.

    A paused run stays paused: it holds no GPU, and only a person can continue it.
    """
    for _ in range(10):
        run = store.runs.get(run_id)
        state = RunState(run.state)
        if state.ended or state is RunState.PAUSED:
            break
        if store.transitions.apply(
            run.id,
            old=state,
            new=RunState.FAILED,
            attempt=run.attempt,
            cause=cause,
            message=message,
            actor=DISPATCHER,
        ):
            break
    for attempt in store.attempts.of_run(run_id):
        if attempt.open:
            store.attempts.close(attempt.id)


def _row(found: Judgement) -> GateVerdict:
    value = found.value
    return GateVerdict(
        rollout_id="",
        stage=0,
        at=0.0,
        gate=found.gate,
        verdict=found.verdict,
        expected=found.expected.text,
        seen=found.seen,
        value=value if value is not None and math.isfinite(value) else None,
        at_least=found.expected.at_least,
        at_most=found.expected.at_most,
        unit=found.expected.unit,
        run_id=found.run_id,
        step=found.step,
    )
