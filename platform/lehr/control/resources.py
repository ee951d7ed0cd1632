"""Needs of runs and resources of nodes, as the queue uses them."""

from __future__ import annotations

import difflib
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from lehr.base.names import is_type
from lehr_trainer.planning.hardware import GPUS

CPUS_A_RUN = 16  # A run without GPUs uses at most as many threads (``Agent.threads``).


@dataclass(frozen=True, slots=True)
class Gpu:
    index: int
    name: str
    """E.g. "NVIDIA A100-SXM4-80GB", or "logical GPU"."""


@dataclass(frozen=True, slots=True)
class Node:
    name: str
    gpus: tuple[Gpu, ...]
    usable: bool = True
    """Its agent answers, and it has no problem; nothing is placed on other nodes."""
    problem: str | None = None  # Why it cannot be used, though its agent answers.
    excluded: bool = False
    """It was excluded for failures or by a user, or has left: nothing is placed on it."""
    left: bool = False  # It has left the cluster; it is also excluded.
    away: str | None = None  # Why it is not there, though the last server knew it.
    cpu_places: int = 1  # Maximum number of runs without a GPU.
    runs_folder: str | None = None
    """The identity of the folder of runs that it sees: nodes with the same one share checkpoints.
    None: unknown.
    """


@dataclass(frozen=True, slots=True)
class Need:
    """The gang that a run needs: placed together or not at all."""

    gpus: int = 1
    nodes: int = 1  # Nodes. Each has the same number of GPUs.
    gpu_type: str | None = None

    @property
    def per_node(self) -> int:
        return self.gpus // self.nodes

    def _named(self, gpus: int) -> str:
        return f"{gpus} x {self.gpu_type}" if self.gpu_type else count(gpus, "GPU")

    @property
    def on_each(self) -> str:
        """What it needs, by node: "2 GPUs on each of 2 nodes"."""
        return f"{self._named(self.per_node)} on each of {self.nodes} nodes"

    @property
    def unmet(self) -> str:
        """Say that no nodes have what it needs. Such a run is accepted: they may join."""
        part = self._named(self.per_node) if self.gpus else "GPUs"
        few = "no node has" if self.nodes == 1 else f"fewer than {self.nodes} nodes have"
        return f"{few} {part}; one may join"

    def __str__(self) -> str:
        if not self.gpus:
            return "a node's CPU"
        what = self._named(self.gpus)
        return what if self.nodes == 1 else f"{what} on {self.nodes} nodes"


@dataclass(frozen=True, slots=True)
class NodeShare:
    node: str
    gpus: tuple[int, ...]


Placement = tuple[NodeShare, ...]  # The first share has torchrun's rendezvous.


def count(number: int, noun: str) -> str:
    return f"{number} {noun}" if number == 1 else f"{number} {noun}s"


def cpu_places(cpus: int | None) -> int:
    """Return how many runs without GPUs a node with so many CPUs trains at once."""
    return max(1, (cpus or 1) // CPUS_A_RUN)


def matching(node: Node, need: Need) -> tuple[int, ...]:
    """Return the indices of the node's GPUs that are of the required type."""
    return tuple(gpu.index for gpu in node.gpus if is_type(gpu.name, need.gpu_type))


def inventory(nodes: Iterable[Node]) -> str:
    """Return e.g. ``8 x NVIDIA H100 80GB HBM3 and 2 x logical GPU``."""
    names = Counter(gpu.name for node in nodes for gpu in node.gpus)
    if not names:
        return "no GPUs"
    kinds = [f"{number} x {name}" for name, number in sorted(names.items())]
    return " and ".join(kinds) if len(kinds) < 3 else ", ".join(kinds)


def can_ever_place(need: Need, nodes: Sequence[Node]) -> str | None:
    """Return why these nodes could never hold the gang; None if they could."""
    if not need.gpus:
        if any(node.gpus for node in nodes):
            return None
        return "needs a node with GPUs, real or logical; there is none"
    sizes = sorted((len(matching(node, need)) for node in nodes), reverse=True)
    if sum(size >= need.per_node for size in sizes) >= need.nodes:
        return None
    has = f"this cluster has {inventory(nodes)}"
    if sum(sizes) < need.gpus:
        return f"needs {need}; {has}"
    largest = sizes[0] if sizes else 0
    if need.nodes == 1:
        return f"needs {need} on one node; {has}, at most {largest} on one node"
    return (
        f"needs {need.on_each}; {has} on {count(len(nodes), 'node')}, at most {largest} on one node"
    )


_ALSO = (
    *("A2", "A16", "A30", "A800", "A1000", "A2000", "A4000", "A4500", "A5000", "A5500", "A6000"),
    *("B100", "B300", "GB200", "GB300", "H20", "H800", "L2", "L20", "L40", "P4", "P40", "P100"),
    *("K80", "RTX 2080", "RTX 3060", "RTX 3070", "RTX 3080", "RTX 4060", "RTX 4070", "RTX 4080"),
    *("RTX 5060", "RTX 5070", "RTX 5080", "RTX 5090", "RTX 6000", "Quadro", "Titan", "GTX"),
    *("MI100", "MI210", "MI250", "MI250X", "MI300A", "MI300X", "MI325X", "MI350X", "MI355X"),
)
"""Names of GPUs that are missing in the trainer's table of peaks."""
_CLOSE = 0.8  # Threshold of difflib's ratio: one wrong letter in a name of four.


def likely_meant(gpu_type: str, existing: Iterable[str]) -> str | None:
    """Return the name that was likely meant; None when ``gpu_type`` may be right.

    It may be right if a GPU of the cluster (``existing``) is of that type, if it contains a known
    name, if it is spelled as the driver does (``NVIDIA ...``), or if it is unlike any known name:
    new GPUs appear, and a run may wait for a node that will join later.
    """
    known = [*dict.fromkeys(gpu.kind for gpu in GPUS), *_ALSO]
    if any(is_type(name, gpu_type) for name in (*existing, *known)):
        return None
    if any(is_type(gpu_type, name) for name in known) or gpu_type.upper().startswith("NVIDIA "):
        return None
    by_key = {name.upper(): name for name in known}
    close = difflib.get_close_matches(gpu_type.upper().strip(), by_key, n=1, cutoff=_CLOSE)
    return by_key[close[0]] if close else None
