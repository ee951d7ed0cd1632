"""What the queue decides on: runs that wait, and holders of GPUs."""

from __future__ import annotations

from dataclasses import dataclass

from lehr.control.locality import Saved
from lehr.control.resources import Need, Placement

Kind = tuple[Need, frozenset[str], frozenset[str], Saved | None]
"""What decides on which nodes a run fits: runs of one kind fit on the same."""


@dataclass(frozen=True, slots=True)
class Waiting:
    run_id: str
    number: int
    """Order of submission."""
    need: Need
    name: str = ""
    priority: int = 0
    project: str = "default"
    sweep_id: str | None = None
    sweep_name: str | None = None
    max_concurrent: int | None = None
    """Limit of its sweep."""
    excluded_nodes: frozenset[str] = frozenset()
    """Nodes that failed this run twice."""
    pause: str | None = None
    """Why it may not start anywhere for a while after its last attempt."""
    closed_nodes: frozenset[str] = frozenset()
    """Nodes that are available for too short a time for it (``availability.py``)."""
    saved: Saved | None = None
    """Where the checkpoints lie that it may resume from; None: it starts at step 0."""
    resume_from: str | None = None
    """The one that it resumes from, relative to the run directory or absolute."""
    can_save: bool = True
    """It saves when it is stopped, or it has a checkpoint: a stop does not cost its work."""
    time_limit_s: float | None = None

    @property
    def kind(self) -> Kind:
        """Return what decides on which nodes it fits."""
        return self.need, self.excluded_nodes, self.closed_nodes, self.saved


@dataclass(frozen=True, slots=True)
class Active:
    """Something that holds GPUs: an attempt of a run, or an orphan of a lost one."""

    run_id: str
    placement: Placement
    number: int = 0
    name: str = ""
    project: str = "default"
    sweep_id: str | None = None
    remaining_s: float | None = None
    """Estimated remaining seconds; None when unknown."""
    priority: int = 0
    attempt: int = 0
    preemptible: bool = False
    """It may be paused now for a run of a higher priority (``preemption.py``)."""
    ending: bool = False
    """It is being stopped: its GPUs become free soon."""


def shown_name(run: Waiting | Active) -> str:
    """Return a run's name for a text that people read; its id if it has none."""
    return run.name or run.run_id
