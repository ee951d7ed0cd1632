"""Decide the transitions that follow from an attempt's exit."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace

from lehr.control.error_patterns import Budget
from lehr.control.lifecycle import Desired, RunState
from lehr.control.outcome import Outcome, outcome, path
from lehr.control.retries import HEALED_BY_PROGRESS, SPENT, Budgets, ExitReport, FinishedReport
from lehr.errors import InternalError

FINALIZE_WAIT_S = 20.0
"""Limit for the streams of an exited attempt. After it, the exit report alone decides."""


@dataclass(frozen=True, slots=True)
class EndedAttempt:
    """The newest attempt of an active run, with its exit and what decides on it."""

    run_id: str
    attempt: int
    state: RunState
    """The state of the run."""
    desired: Desired
    """What the attempt should do: one that is stopping stops, even if its run was resumed."""
    report: ExitReport
    finished: FinishedReport | None
    budgets: Budgets
    """Retries left."""
    spent: Mapping[str, int]
    """Retries used, by the column of the run that counts them; healed by progress."""
    progressed: bool = False
    """The attempt has saved a newer checkpoint than the attempts before it."""
    resumable: bool = True
    """The run has a checkpoint, its own or that of its fork."""
    over_time_limit: bool = False
    preempted: bool = False
    """It was stopped for a run of a higher priority, and nobody has requested anything else."""
    node_ends: bool = False
    """The same because its node is available only until a time."""
    time_limit_s: float | None = None
    message: str | None = None
    """Message of the request that applies to the run."""
    delivered: bool = True
    """All of its streams have arrived, or none will."""
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
    changes: Mapping[str, int]
    """Columns of the run that the last transition changes: used retries."""

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
    decided = _outcome(ended)
    transitions = path(ended.state, decided.state)
    if not transitions:
        raise InternalError(
            f"run {ended.run_id}: there is no transition from {ended.state} to {decided.state}"
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
        ended.state,
        transitions,
        decided.cause,
        decided.message,
        changes,
    )


def _outcome(ended: EndedAttempt) -> Outcome:
    decided = outcome(
        desired=ended.desired,
        time_limit_s=ended.time_limit_s,
        over_time_limit=ended.over_time_limit,
        preempted=ended.preempted,
        node_ends=ended.node_ends,
        progressed=ended.progressed,
        resumable=ended.resumable,
        ended=ended.report,
        finished=ended.finished,
        budgets=ended.budgets,
    )
    if decided.message is None and decided.state in {RunState.PRUNED, RunState.CANCELLED}:
        return replace(decided, message=ended.message)
    return decided
