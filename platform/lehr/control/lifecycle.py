"""The life cycle of a run: its states and the allowed transitions.

A transition that is not in ``TRANSITIONS`` cannot be recorded. This package decides transitions;
``lehr.store`` records them.
"""

from __future__ import annotations

from enum import StrEnum


class RunState(StrEnum):
    QUEUED = "queued"
    STARTING = "starting"
    RUNNING = "running"
    STOPPING = "stopping"
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


class Desired(StrEnum):
    """The desired state of a run, set by people or a pruner. Orders carry it to the attempt."""

    RUN = "run"
    PAUSE = "pause"
    CANCEL = "cancel"
    PRUNE = "prune"


TRANSITIONS: dict[RunState, frozenset[RunState]] = {
    RunState.QUEUED: frozenset(
        {RunState.STARTING, RunState.PAUSED, RunState.CANCELLED, RunState.FAILED}
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
    RunState.FAILED: frozenset({RunState.QUEUED}),
    RunState.COMPLETED: frozenset(),
    RunState.CANCELLED: frozenset(),
    RunState.PRUNED: frozenset(),
}

ENDED = frozenset({RunState.COMPLETED, RunState.FAILED, RunState.CANCELLED, RunState.PRUNED})
ACTIVE = frozenset({RunState.STARTING, RunState.RUNNING, RunState.STOPPING})


def can_transition(old: RunState, new: RunState) -> bool:
    return new in TRANSITIONS[old]
