"""Decide the next state of a run after its attempt has ended."""

from __future__ import annotations

from dataclasses import dataclass

from lehr.control.availability import NODE_UNTIL
from lehr.control.error_patterns import Budget
from lehr.control.lifecycle import TRANSITIONS, Desired, RunState
from lehr.control.retries import (
    Budgets,
    Cause,
    ExitReport,
    FinishedReport,
    classify,
    has_saved,
    rough_end,
)

PREEMPTED = "preempted"
"""The cause of the states of a run that is paused for another one."""
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


def outcome(
    *,
    desired: Desired,
    time_limit_s: float | None,
    over_time_limit: bool,
    preempted: bool = False,
    node_ends: bool = False,
    progressed: bool = False,
    resumable: bool = True,
    ended: ExitReport,
    finished: FinishedReport | None,
    budgets: Budgets,
) -> Outcome:
    """Return the next state of the run, and why.

    Args:
        desired: the desired state when the attempt ended.
        time_limit_s: the run's limit, for the message.
        over_time_limit: the attempt was stopped because of the limit.
        preempted: it was stopped for a run of a higher priority.
        node_ends: it was stopped because its node is available only until a time.
        progressed: it has saved a newer checkpoint than the attempts before it.
        resumable: it has a checkpoint, its own or that of its fork.
        ended: how the process ended.
        finished: the trainer's last record, if any.
        budgets: retries left.
    """
    if finished is not None and finished.outcome == "completed":
        # The trainer's record decides: a crash at exit does not undo a finished training.
        return Outcome(RunState.COMPLETED, "completed", rough_end(ended))
    if preempted or node_ends:
        if finished is None or finished.outcome != "failed":
            kept = progressed or has_saved(finished)
            how = _how_it_stopped(resumable=resumable, saved=kept)
            return _preempted(how) if preempted else _moved(how, budgets, saved=kept)
        desired = Desired.RUN  # It failed by itself meanwhile: that decides.
    cause = classify(ended, finished)
    covered = budgets.covers(cause.budget)
    # The desired state decides, however the process ended while stopping.
    if desired is not Desired.RUN and (covered or not _failed_while_pausing(desired, finished)):
        message = None
        if desired is Desired.PAUSE and not has_saved(finished):
            message = f"it {_how_it_stopped(resumable=resumable, saved=False)}"
        return Outcome(_STOPPED[desired], desired.value, message)
    if over_time_limit:
        limit = f" of {time_limit_s:g} s" if time_limit_s is not None else ""
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


def _failed_while_pausing(desired: Desired, finished: FinishedReport | None) -> bool:
    """Return whether it failed by itself: without another try, it would only fail again."""
    return desired is Desired.PAUSE and finished is not None and finished.outcome == "failed"


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
