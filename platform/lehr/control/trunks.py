"""Decide what the trials that wait for the trunk of their sweep do: start, end, or wait again.

A trunk trains the stages that all trials share. They start from its last checkpoint.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from lehr.control.lifecycle import ENDED, RunState

if TYPE_CHECKING:
    from lehr.control.sweeps import TrialState

OF_TRUNK = "trunk"
"""The cause of a trial that ended, or waits again, because the trunk of its sweep did."""


@dataclass(frozen=True)
class Trunk:
    """The run that trains the stages that the trials share."""

    run_id: str
    name: str
    state: RunState
    reason: str | None = None
    base: str | None = None
    """Folder of its last checkpoint; None before it has completed, or if that was removed."""


@dataclass(frozen=True)
class FollowTrunk:
    """Let the trials that wait for the trunk start, end with it, or wait again."""

    sweep_id: str
    trunk: Trunk
    why: str


def follow(sweep_id: str, trunk: Trunk, trials: Sequence[TrialState]) -> FollowTrunk | None:
    """Return what the trials that wait for the trunk do now; None while they wait."""
    waiting = [trial for trial in trials if trial.waits]
    if trunk.base is not None:
        return FollowTrunk(sweep_id, trunk, f"{trunk.name} has completed") if waiting else None
    if trunk.state not in ENDED:
        failed = any(one.state is RunState.FAILED and one.cause == OF_TRUNK for one in waiting)
        return FollowTrunk(sweep_id, trunk, f"{trunk.name} was queued again") if failed else None
    removed = trunk.state is RunState.COMPLETED
    reason = "its last checkpoint was removed" if removed else trunk.reason
    text = f"it starts where {trunk.name} ends, which is {trunk.state.value}"
    text = f"{text}: {reason}" if reason else text
    queued = any(trial.state is RunState.QUEUED for trial in waiting)
    return FollowTrunk(sweep_id, trunk, text) if queued else None
