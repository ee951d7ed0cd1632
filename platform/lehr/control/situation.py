"""The situation of a run: its state and what is wanted of it, and the orders for its attempt.

Pure: values in, values out.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass
from typing import Literal

from lehr.control.availability import NODE_UNTIL
from lehr.control.lifecycle import Desired, RunState
from lehr.control.outcome import PREEMPTED
from lehr.control.requests import TIME_LIMIT
from lehr_trainer.contract.orders import Orders


@dataclass(frozen=True, slots=True)
class Situation:
    """The state of a run, and what is wanted of it."""

    state: RunState
    desired: Desired
    """The state that was requested last."""
    cause: str | None = None
    """Why it is in its state."""

    @property
    def wanted(self) -> Desired:
        """Return what its attempt should do. A run that is stopping stops, even if it was resumed
        meanwhile.
        """
        stopping = self.state is RunState.STOPPING and not self.over_time_limit
        return Desired.PAUSE if stopping and self.desired is Desired.RUN else self.desired

    @property
    def over_time_limit(self) -> bool:
        """Return whether it stops because of its time limit."""
        return self.state is RunState.STOPPING and self.cause == TIME_LIMIT

    @property
    def preempted(self) -> bool:
        """Return whether it stops for another run, and no request has come since then."""
        return self._stops_because(PREEMPTED)

    @property
    def node_ends(self) -> bool:
        """Return whether it stops since its node ends, and no request has come since then."""
        return self._stops_because(NODE_UNTIL)

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
    desired, reason = _order(situation, fenced=fenced)
    return Orders(
        desired=desired, checkpoint_seq=checkpoint_seq, reason=reason, keep=tuple(sorted(keep))
    )


def _order(situation: Situation, *, fenced: bool) -> tuple[Literal["run", "pause", "stop"], str]:
    """Return what it should do, and why."""
    if fenced:
        return "stop", "fenced"
    if situation.over_time_limit:
        return "pause", "time_limit"
    wanted = situation.wanted
    if wanted is Desired.RUN and situation.state.active:
        return "run", ""
    if wanted is Desired.PAUSE:
        return "pause", "pause"
    return "stop", wanted.value
