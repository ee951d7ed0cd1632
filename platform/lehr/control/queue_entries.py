"""What the queue decides on: runs that wait, and holders of GPUs."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from lehr.control.resources import Need, Node, Placement, matching

CURE = "Set checkpoints.upload, or put LEHR_RUNS on storage that all nodes share."


@dataclass(frozen=True, slots=True)
class Saved:
    """Where the checkpoints lie that a run may resume from."""

    nodes: tuple[str, ...]  # The nodes that wrote them, that of the newest one first.
    copied: bool = False  # A copy in storage exists, which any node can fetch.


@dataclass(frozen=True, slots=True)
class Reach:
    near: frozenset[str]  # Nodes that have the files.
    allowed: frozenset[str] | None = None
    """Nodes that may have them; None: any node, because all have them or nothing is known."""


def reach(saved: Saved, nodes: Mapping[str, Node]) -> Reach:
    """Return the nodes on which a run can resume.

    It is the newest checkpoint's node, and all that see the same folder. Only if no node with the
    newest checkpoint can be used, older ones count: they cost some steps, not the run.
    """
    living = [name for name in saved.nodes if name in nodes and nodes[name].usable]
    writers = living[:1] or saved.nodes
    folders = {nodes[name].runs_folder if name in nodes else None for name in writers}
    near = frozenset(
        node.name
        for node in nodes.values()
        if node.name in writers or (node.runs_folder is not None and node.runs_folder in folders)
    )
    if saved.copied or None in folders or not writers:
        return Reach(near)
    unknown = {node.name for node in nodes.values() if node.runs_folder is None}
    allowed = near | unknown
    return Reach(near, None if len(allowed) == len(nodes) else allowed)


def separate_folders(need: Need, nodes: Iterable[Node]) -> list[str]:
    """Return the nodes that could hold a part of the run and do not all share the folder of runs.

    Empty if they share it, if there is only one, or if it is unknown.
    """
    able = [
        node
        for node in nodes
        if node.usable
        and node.runs_folder is not None
        and (len(matching(node, need)) >= need.per_node if need.gpus else node.gpus)
    ]
    if len({node.runs_folder for node in able}) < 2:
        return []
    return sorted(node.name for node in able)


def resume_warning(names: Iterable[str]) -> str:
    """Return the warning for a run of one node. ``names``: of ``separate_folders``."""
    return (
        f"Its checkpoints stay on the node that writes them, because the nodes "
        f"({', '.join(names)}) do not share the folder of runs: if that node is lost, it cannot "
        f"resume. {CURE}"
    )


Kind = tuple[Need, frozenset[str], frozenset[str], Saved | None]
"""What decides on which nodes a run fits: runs of one kind fit on the same."""


@dataclass(frozen=True, slots=True)
class Waiting:
    run_id: str
    number: int  # Order of submission.
    need: Need
    name: str = ""
    priority: int = 0
    project: str = "default"
    sweep_id: str | None = None
    sweep_name: str | None = None
    max_concurrent: int | None = None  # Limit of its sweep.
    excluded_nodes: frozenset[str] = frozenset()  # Nodes that failed this run twice.
    pause: str | None = None  # Why it may not start anywhere for a while after its last attempt.
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
    remaining_s: float | None = None  # Estimated remaining seconds; None when unknown.
    priority: int = 0
    attempt: int = 0
    preemptible: bool = False
    """It may be paused now for a run of a higher priority (``preemption.py``)."""
    ending: bool = False  # It is being stopped: its GPUs become free soon.


def shown_name(run: Waiting | Active) -> str:
    return run.name or run.run_id
