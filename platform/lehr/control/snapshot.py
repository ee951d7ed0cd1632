"""``Snapshot``: everything that one tick decides on, as frozen values of one moment."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass, field

from lehr.control.availability import NodeEnd
from lehr.control.evaluations import EvaluatedRun
from lehr.control.finalize import EndedAttempt
from lehr.control.lifecycle import Desired, RunState
from lehr.control.nodes import Ended
from lehr.control.queue_entries import Active, Waiting
from lehr.control.reconcile import NodeSeen, OpenAttempt, Timeouts
from lehr.control.resources import Node
from lehr.control.rollouts import OpenRollout
from lehr.control.sweeps import OpenSweep


@dataclass(frozen=True, slots=True)
class OpenRun:
    id: str
    state: RunState
    desired: Desired
    attempt: int  # Number of its newest attempt; 0 before the first.
    time_limit_s: float | None = None
    message: str | None = None  # Message of the request that applies now.
    pending_reason: str | None = None  # Why it waits, as recorded.
    waiting: Waiting | None = None  # What it waits for while it is queued.


@dataclass(frozen=True, slots=True)
class Snapshot:
    """All that one tick decides on.

    A part that could not be read is absent: nothing is decided on it in this tick.
    """

    runs: Collection[OpenRun] = ()  # In order of submission.
    attempts: Collection[OpenAttempt] = ()
    """Attempts that may still have processes, or streams that are not complete."""
    unreadable_attempts: Collection[str] = ()
    """Ids of open attempts that are not in ``attempts``: they are no orphans."""
    ended: Collection[EndedAttempt] = ()  # Newest attempts of active runs whose exit is recorded.
    members: Collection[NodeSeen] = ()
    """Every node that is or was a member, with the attempts that its agent lists."""
    membership_known: bool = True  # Ray answers. While its head is down, no node counts as lost.
    places: Collection[Node] = ()  # The same nodes, with their GPUs.
    holders: Collection[Active] = ()  # Everything that holds GPUs.
    exited: Mapping[str, str] = field(default_factory=dict)
    """Active runs of sweeps that hold nothing any more: the sweep, by run."""
    slots: Mapping[str, int] = field(default_factory=dict)
    """By sweep with a limit: the newest run's number when a run of the sweep ended last."""
    quotas: Mapping[str, int] = field(default_factory=dict)
    """By project with a quota: the most GPUs that its runs hold."""
    node_ends: Mapping[str, NodeEnd] = field(default_factory=dict)
    """By node that is available only until a time: when."""
    sweeps: Collection[OpenSweep] = ()  # Sweeps of which something has changed.
    sweeps_in_s: float | None = None
    """Seconds until a large sweep is judged again; None if none is to be."""
    rollouts: Collection[OpenRollout] = ()  # Rollouts of which something has changed.
    evaluated: Collection[EvaluatedRun] = ()
    """Runs with evaluations of which something has changed."""
    ends: Collection[Ended] = ()
    """Recent ends of attempts; empty if none has ended since the last check."""
    readmitted: Mapping[str, float] = field(default_factory=dict)
    """By node: since when its failures count."""
    estimates_in_s: float = 0.0
    """Seconds until ``Active.remaining_s`` of the holders is estimated again."""
    waiting_in_s: float | None = None
    """Seconds until a waiting run ends its pause or its avoidance of a node; None: none does."""
    no_cluster: str | None = None  # Why no run can start, if no node answers.
    held: bool = False
    """Another server may have these runs: none is started, and none counts as lost."""
    timeouts: Timeouts = field(default_factory=Timeouts)
