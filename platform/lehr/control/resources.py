"""What runs need and what nodes have, in the queue's own words."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

_WORD = re.compile(r"[a-z0-9]+")


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
    """Its agent answers; nothing is placed on a node that is known but silent."""
    excluded: bool = False
    """It fails what it is given, or somebody took it out: nothing is placed on it."""
    cpu_places: int = 1
    """Runs without a GPU that it takes at one time."""


@dataclass(frozen=True, slots=True)
class Need:
    """The gang that a run needs: all of it at once, or none."""

    gpus: int = 1
    nodes: int = 1
    """Nodes that share the GPUs evenly."""
    gpu_type: str | None = None

    @property
    def per_node(self) -> int:
        return self.gpus // self.nodes

    def __str__(self) -> str:
        if not self.gpus:
            return "a node's CPU"
        what = f"{self.gpus} x {self.gpu_type}" if self.gpu_type else count(self.gpus, "GPU")
        return what if self.nodes == 1 else f"{what} on {self.nodes} nodes"


@dataclass(frozen=True, slots=True)
class NodeShare:
    """One node's part of a placement."""

    node: str
    gpus: tuple[int, ...]


Placement = tuple[NodeShare, ...]
"""The first share is where torchrun's rendezvous is."""


def count(number: int, noun: str) -> str:
    return f"{number} {noun}" if number == 1 else f"{number} {noun}s"


def words(name: str) -> list[str]:
    return _WORD.findall(name.lower())


def is_type(gpu_name: str, wanted: str | None) -> bool:
    """Whether a GPU is of the wanted type: A100 is a word of "NVIDIA A100-SXM4-80GB".

    Several words may be wanted ("A100 80GB"), and a space more or less does not matter
    (RTX4090 is "GeForce RTX 4090"); a part of a word never matches, or H100 would take an
    H1000.
    """
    if wanted is None:
        return True
    have, want = words(gpu_name), words(wanted)
    if set(want) <= set(have):
        return True
    joined = "".join(want)
    return any(
        "".join(have[start:stop]) == joined
        for start in range(len(have))
        for stop in range(start + 1, len(have) + 1)
    )


def matching(node: Node, need: Need) -> tuple[int, ...]:
    """Indices of the node's GPUs that are of the type needed."""
    return tuple(gpu.index for gpu in node.gpus if is_type(gpu.name, need.gpu_type))


def inventory(nodes: Iterable[Node]) -> str:
    """E.g. ``8 x NVIDIA H100 80GB HBM3 and 2 x logical GPU``."""
    names = Counter(gpu.name for node in nodes for gpu in node.gpus)
    if not names:
        return "no GPUs"
    kinds = [f"{number} x {name}" for name, number in sorted(names.items())]
    return " and ".join(kinds) if len(kinds) < 3 else ", ".join(kinds)


def can_ever_place(need: Need, nodes: Sequence[Node]) -> str | None:
    """Why no state of these nodes could ever hold the gang; None when one could."""
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
    kind = need.gpu_type or "GPU"
    if need.nodes == 1:
        return f"needs {need} on one node; {has}, at most {largest} on one node"
    return (
        f"needs {need}, {need.per_node} x {kind} on each; {has} "
        f"on {count(len(nodes), 'node')}, at most {largest} on one"
    )
