"""Which nodes have the checkpoint that a run resumes from.

Without shared storage a checkpoint stays on the node that wrote it. A run that starts on another
node fails there, and would use up its retries. So it is placed where its checkpoint is.

Pure: values in, values out.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from lehr.control.resources import Need, Node, matching

CURE = "Set checkpoints.upload, or put LEHR_RUNS on storage that all nodes share."


@dataclass(frozen=True, slots=True)
class Saved:
    """Where the checkpoints lie that a run may resume from."""

    nodes: tuple[str, ...]
    """The nodes that wrote them, that of the newest one first."""
    copied: bool = False
    """A copy in storage exists, which any node can fetch."""


@dataclass(frozen=True, slots=True)
class Reach:
    near: frozenset[str]
    """Nodes that have the files."""
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
