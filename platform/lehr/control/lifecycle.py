"""The life cycle of a run: its states, the allowed transitions, what requests and limits cause, and
the orders for its attempt.

A transition that is not in ``TRANSITIONS`` cannot be recorded. This package decides transitions;
``lehr.store`` records them.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass
from enum import StrEnum
from typing import TYPE_CHECKING, Literal

from lehr_trainer.contract.orders import Orders

if TYPE_CHECKING:
    from lehr.control.snapshot import OpenRun


class RunState(StrEnum):
    QUEUED = "queued"
    STARTING = "starting"
    RUNNING = "running"
    STOPPING = "stopping"
    EXTERNAL = "external"
    """A process that Lehr did not start reports it: no GPU of Lehr's, no queue, no retry."""
    PAUSED = "paused"
    COMPLETED = "completed"
    FAILED = "failed"
    CANCELLED = "cancelled"
    PRUNED = "pruned"

    @property
    def ended(self) -> bool:
        return self in ENDED

    @property
    def active(self) -> bool:
        """Return whether an attempt of it may hold GPUs."""
        return self in ACTIVE

    @property
    def reports(self) -> bool:
        """Return whether an attempt of it may report."""
        return self in REPORTING


class Desired(StrEnum):
    """The desired state of a run, set by people or a pruner. Orders carry it to the attempt."""

    RUN = "run"
    PAUSE = "pause"
    CANCEL = "cancel"
    PRUNE = "prune"


TRANSITIONS: dict[RunState, frozenset[RunState]] = {
    RunState.QUEUED: frozenset(
        {RunState.STARTING, RunState.EXTERNAL, RunState.PAUSED, RunState.CANCELLED, RunState.FAILED}
    ),
    RunState.STARTING: frozenset(
        {RunState.RUNNING, RunState.STOPPING, RunState.FAILED, RunState.QUEUED}
    ),
    RunState.RUNNING: frozenset(
        {RunState.STOPPING, RunState.COMPLETED, RunState.FAILED, RunState.QUEUED}
    ),
    RunState.STOPPING: frozenset(
        {
            RunState.PAUSED,
            RunState.QUEUED,
            RunState.CANCELLED,
            RunState.PRUNED,
            RunState.COMPLETED,
            RunState.FAILED,
        }
    ),
    RunState.PAUSED: frozenset({RunState.QUEUED, RunState.CANCELLED}),
    # Another process goes on with a run that Lehr did not start, whatever became of it.
    RunState.EXTERNAL: frozenset(
        {RunState.EXTERNAL, RunState.COMPLETED, RunState.FAILED, RunState.CANCELLED}
    ),
    RunState.FAILED: frozenset({RunState.QUEUED, RunState.EXTERNAL}),
    RunState.COMPLETED: frozenset({RunState.EXTERNAL}),
    RunState.CANCELLED: frozenset({RunState.EXTERNAL}),
    RunState.PRUNED: frozenset(),
}

ENDED = frozenset({RunState.COMPLETED, RunState.FAILED, RunState.CANCELLED, RunState.PRUNED})
ACTIVE = frozenset({RunState.STARTING, RunState.RUNNING, RunState.STOPPING})
REPORTING = ACTIVE | {RunState.EXTERNAL}


def can_transition(old: RunState, new: RunState) -> bool:
    return new in TRANSITIONS[old]


ALERT = "alert:"  # Prefix of the actor of a request that an alert made; the alert's code follows.
TIME_LIMIT = "time_limit"  # The cause of a run that stops because it has reached its time limit.
PREEMPTED = "preempted"  # The cause of the states of a run that is paused for another one.
REWIND = "rewind"
"""The cause of the states of a run that is stopped to restart from an earlier checkpoint."""
NODE_UNTIL = "node_until"
"""The cause of the states of a run that is stopped because its node is not available any more."""


@dataclass(frozen=True, slots=True)
class StateChange:
    run_id: str
    attempt: int
    old: RunState
    new: RunState
    cause: str
    message: str | None = None


def transition_for_request(state: RunState, desired: Desired) -> RunState | None:
    ends = {Desired.CANCEL, Desired.PRUNE}
    if state is RunState.QUEUED:
        if desired in ends:
            return RunState.CANCELLED
        return RunState.PAUSED if desired is Desired.PAUSE else None
    if state is RunState.PAUSED:
        if desired in ends:
            return RunState.CANCELLED
        return RunState.QUEUED if desired is Desired.RUN else None
    if state is RunState.EXTERNAL and desired in ends:
        return RunState.CANCELLED  # At once: its process may be gone for good.
    if state in {RunState.STARTING, RunState.RUNNING} and desired is not Desired.RUN:
        return RunState.STOPPING
    return None


def apply_request(run: OpenRun, elapsed_s: float | None) -> StateChange | None:
    """Return the transition that a request or the time limit causes now, if any.

    ``elapsed_s``: seconds since the start of its newest attempt; None if that has none.
    """
    new = transition_for_request(run.state, run.desired)
    if new is not None:
        cause = "resume" if new is RunState.QUEUED else run.desired.value
        return StateChange(run.id, run.attempt, run.state, new, cause, run.message)
    limit_s = run.time_limit_s
    over = limit_s is not None and elapsed_s is not None and elapsed_s > limit_s
    if run.state is RunState.RUNNING and over:
        words = f"its limit is {limit_s:g} s"
        return StateChange(run.id, run.attempt, run.state, RunState.STOPPING, TIME_LIMIT, words)
    return None


@dataclass(frozen=True, slots=True)
class Situation:
    state: RunState
    desired: Desired  # The state that was requested last.
    cause: str | None = None  # Why it is in its state.

    @property
    def wanted(self) -> Desired:
        """Return what its attempt should do. A run that is stopping stops, even if it was resumed
        meanwhile.
        """
        if self.rewinds:
            return Desired.CANCEL
        stopping = self.state is RunState.STOPPING and not self.over_time_limit
        return Desired.PAUSE if stopping and self.desired is Desired.RUN else self.desired

    @property
    def over_time_limit(self) -> bool:
        return self.state is RunState.STOPPING and self.cause == TIME_LIMIT

    @property
    def preempted(self) -> bool:
        """Return whether it stops for another run, and no request has come since then."""
        return self._stops_because(PREEMPTED)

    @property
    def node_ends(self) -> bool:
        """Return whether it stops since its node ends, and no request has come since then."""
        return self._stops_because(NODE_UNTIL)

    @property
    def rewinds(self) -> bool:
        """Return whether it stops to be rewound, and no request has come since then."""
        return self._stops_because(REWIND)

    def _stops_because(self, cause: str) -> bool:
        stops = self.state is RunState.STOPPING and self.cause == cause
        return stops and self.desired is Desired.RUN


def orders(
    situation: Situation, checkpoint_seq: int, *, fenced: bool, keep: Collection[str] = ()
) -> Orders:
    """Return the orders for an attempt.

    Args:
        situation: that of its run.
        checkpoint_seq: how many checkpoints people have requested.
        fenced: another attempt has followed, or its run is over.
        keep: paths of the checkpoints that forks wait for.
    """
    desired: Literal["run", "pause", "stop"] = "stop"
    reason = "fenced" if fenced else REWIND if situation.rewinds else situation.wanted.value
    if not fenced and situation.over_time_limit:
        desired, reason = "pause", TIME_LIMIT
    elif not fenced and situation.wanted is Desired.PAUSE:
        desired = "pause"
    elif not fenced and situation.wanted is Desired.RUN and situation.state.reports:
        desired, reason = "run", ""
    return Orders(
        desired=desired, checkpoint_seq=checkpoint_seq, reason=reason, keep=tuple(sorted(keep))
    )
