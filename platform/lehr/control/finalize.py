"""Decide the transitions that follow from an attempt's exit."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from lehr.control.error_patterns import Budget
from lehr.control.lifecycle import (
    NODE_UNTIL,
    PREEMPTED,
    REWIND,
    TRANSITIONS,
    Desired,
    RunState,
    Situation,
)
from lehr.control.retries import (
    HEALED_BY_PROGRESS,
    SPENT,
    Budgets,
    Cause,
    ExitReport,
    FinishedReport,
    classify,
    has_saved,
    rough_end,
)
from lehr.errors import InternalError

FINALIZE_WAIT_S = 20.0
"""Limit for the streams of an exited attempt. After it, the exit report alone decides."""


@dataclass(frozen=True, slots=True)
class EndedAttempt:
    """The newest attempt of an active run, with its exit and what decides on it."""

    run_id: str
    attempt: int
    situation: Situation  # That of the run.
    report: ExitReport
    finished: FinishedReport | None
    budgets: Budgets  # Retries left.
    spent: Mapping[str, int]
    """Retries used, by the column of the run that counts them; healed by progress."""
    progressed: bool = False
    """The attempt has saved a newer checkpoint than the attempts before it."""
    resumable: bool = True  # The run has a checkpoint, its own or that of its fork.
    time_limit_s: float | None = None
    message: str | None = None  # Message of the request that applies to the run, or of its rewind.
    delivered: bool = True  # All of its streams have arrived, or none will.
    since_exit_s: float = 0.0


@dataclass(frozen=True, slots=True)
class Finalize:
    """Give the run the state that follows from its attempt's exit."""

    run_id: str
    attempt: int
    old: RunState
    path: tuple[RunState, ...]
    """The transitions in order; the last one has the cause and the message."""
    cause: str
    message: str | None
    changes: Mapping[str, int]  # Columns of the run that the last transition changes: used retries.

    @property
    def state(self) -> RunState:
        return self.path[-1]


def finalize(ended: EndedAttempt) -> Finalize | None:
    """Return what follows from the exit; None while its streams are still arriving.

    Raises:
        InternalError: the run's state has no transition to the one that follows.
    """
    if not ended.delivered and ended.since_exit_s < FINALIZE_WAIT_S:
        return None
    decided = outcome(ended)
    transitions = path(ended.situation.state, decided.state)
    if not transitions:
        raise InternalError(
            f"run {ended.run_id}: there is no transition from {ended.situation.state} "
            f"to {decided.state}"
        )
    changes: dict[str, int] = {}
    if decided.spends is not Budget.NONE:
        column = SPENT[decided.spends]
        if ended.progressed:
            changes |= dict.fromkeys(HEALED_BY_PROGRESS, 0)
        changes[column] = ended.spent[column] + 1
    return Finalize(
        ended.run_id,
        ended.attempt,
        ended.situation.state,
        transitions,
        decided.cause,
        decided.message,
        changes,
    )


_STOPPED: dict[Desired, RunState] = {
    Desired.PAUSE: RunState.PAUSED,
    Desired.CANCEL: RunState.CANCELLED,
    Desired.PRUNE: RunState.PRUNED,
}


@dataclass(frozen=True, slots=True)
class Outcome:
    state: RunState
    cause: str
    message: str | None = None
    spends: Budget = Budget.NONE
    """The budget that pays for the next try; NONE when there is no next try."""


def outcome(ended: EndedAttempt) -> Outcome:
    now, finished, budgets = ended.situation, ended.finished, ended.budgets
    desired = now.wanted
    if finished is not None and finished.outcome == "completed":
        # The trainer's record decides: a crash at exit does not undo a finished training.
        return Outcome(RunState.COMPLETED, "completed", rough_end(ended.report))
    if now.rewinds:
        # However it ended: what it did since the spike is given up.
        return Outcome(RunState.QUEUED, REWIND, ended.message)
    if now.preempted or now.node_ends:
        if finished is None or finished.outcome != "failed":
            kept = ended.progressed or has_saved(finished)
            how = _how_it_stopped(resumable=ended.resumable, saved=kept)
            return _preempted(how) if now.preempted else _moved(how, budgets, saved=kept)
        desired = Desired.RUN  # It failed by itself meanwhile: that decides.
    cause = classify(ended.report, finished)
    if now.state is RunState.EXTERNAL:  # Nobody starts it again.
        if finished is not None and finished.outcome == "stopped":
            return Outcome(RunState.CANCELLED, "interrupted", finished.message)
        return Outcome(RunState.FAILED, cause.name, cause.message)
    covered = budgets.covers(cause.budget)
    # Without another try, a run that failed by itself while pausing would only fail again.
    fails = desired is Desired.PAUSE and finished is not None and finished.outcome == "failed"
    # The desired state decides, however the process ended while stopping.
    if desired is not Desired.RUN and (covered or not fails):
        message = ended.message if desired is not Desired.PAUSE else None
        if desired is Desired.PAUSE and not has_saved(finished):
            message = f"it {_how_it_stopped(resumable=ended.resumable, saved=False)}"
        return Outcome(_STOPPED[desired], desired.value, message)
    if now.over_time_limit:
        limit = f" of {ended.time_limit_s:g} s" if ended.time_limit_s is not None else ""
        saved = ", and saved" if has_saved(finished) else ""
        return Outcome(RunState.FAILED, "time_limit", f"stopped at its time limit{limit}{saved}")
    if covered:
        return Outcome(RunState.QUEUED, cause.name, cause.message, spends=cause.budget)
    return Outcome(RunState.FAILED, cause.name, _exhausted(cause))


def _preempted(how: str) -> Outcome:
    message = f"it was paused for a run of a higher priority, and {how}"
    return Outcome(RunState.QUEUED, PREEMPTED, message, spends=Budget.PREEMPTION)


def _moved(how: str, budgets: Budgets, *, saved: bool) -> Outcome:
    message = f"it was stopped at the end of its node, and {how}"
    if saved:
        return Outcome(RunState.QUEUED, NODE_UNTIL, message)
    # A run that never gets further on nodes that end must not begin again for ever.
    if budgets.covers(Budget.PREEMPTION):
        return Outcome(RunState.QUEUED, NODE_UNTIL, message, spends=Budget.PREEMPTION)
    message = "it was stopped at the end of its node without a report of a save"
    cause = Cause(NODE_UNTIL, Budget.PREEMPTION, message)
    return Outcome(RunState.FAILED, NODE_UNTIL, _exhausted(cause))


def _how_it_stopped(*, resumable: bool, saved: bool) -> str:
    if saved:
        return "has saved"
    again = "resume from its last checkpoint" if resumable else "begin again: it has no checkpoint"
    return f"ended without a report of a save; it will {again}"


def _exhausted(cause: Cause) -> str:
    if cause.budget in {Budget.NONE, Budget.USER}:
        return cause.message
    return f"{cause.message}; no retry is left for this kind of failure ({cause.budget.value})"


def path(old: RunState, new: RunState) -> tuple[RunState, ...]:
    """Return the transitions from one state to another, without the first state; empty if
    impossible.

    A short run can end before its start was recorded. It goes from ``starting`` by way of
    ``running`` to ``completed``, since each state is recorded.
    """
    if new in TRANSITIONS[old]:
        return (new,)
    for between in (RunState.RUNNING, RunState.STOPPING):
        if between in TRANSITIONS[old] and new in TRANSITIONS[between]:
            return (between, new)
    return ()
