"""Decide the transitions that follow from users' requests and time limits."""

from __future__ import annotations

from dataclasses import dataclass

from lehr.control.lifecycle import Desired, RunState

ALERT = "alert:"
"""Prefix of the actor of a request that an alert made; the alert's code follows."""
TIME_LIMIT = "time_limit"
"""The cause of a run that stops because it has reached its time limit."""


@dataclass(frozen=True, slots=True)
class StateChange:
    """Change the run's state."""

    run_id: str
    attempt: int
    old: RunState
    new: RunState
    cause: str
    message: str | None = None


def transition_for_request(state: RunState, desired: Desired) -> RunState | None:
    """Return the transition that a request causes in this state, if any."""
    ends = {Desired.CANCEL, Desired.PRUNE}
    if state is RunState.QUEUED:
        if desired in ends:
            return RunState.CANCELLED
        return RunState.PAUSED if desired is Desired.PAUSE else None
    if state is RunState.PAUSED:
        if desired in ends:
            return RunState.CANCELLED
        return RunState.QUEUED if desired is Desired.RUN else None
    if state in {RunState.STARTING, RunState.RUNNING} and desired is not Desired.RUN:
        return RunState.STOPPING
    return None


def apply_request(
    run_id: str,
    attempt: int,
    state: RunState,
    desired: Desired,
    *,
    message: str | None = None,
    time_limit_s: float | None = None,
    elapsed_s: float | None = None,
) -> StateChange | None:
    """Return the transition that the request or the time limit causes now, if any.

    Args:
        run_id: the run.
        attempt: number of its newest attempt.
        state: its state.
        desired: the state that was requested.
        message: the message of that request.
        time_limit_s: the limit of a running attempt.
        elapsed_s: seconds since the attempt's start; None if it has none.
    """
    new = transition_for_request(state, desired)
    if new is not None:
        cause = "resume" if new is RunState.QUEUED else desired.value
        return StateChange(run_id, attempt, state, new, cause, message)
    over = time_limit_s is not None and elapsed_s is not None and elapsed_s > time_limit_s
    if state is RunState.RUNNING and over:
        words = f"its limit is {time_limit_s:g} s"
        return StateChange(run_id, attempt, state, RunState.STOPPING, TIME_LIMIT, words)
    return None
