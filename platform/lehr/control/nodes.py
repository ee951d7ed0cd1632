"""Which nodes get no more work because they fail what they are given.

A node whose last ``LIMIT`` attempts all ended by a fault of its own is excluded, until somebody
readmits it: a broken machine is free again soonest, and would eat every waiting run's retries. An
attempt that ends in any other way clears it, the user's errors and cancels too. The last node
that can be used is never excluded: then nothing would run at all.

Pure: values in, values out.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass

LIMIT = 2
FAULTS = frozenset(
    {
        *("node_lost", "node_rebooted", "no_contact", "gpu_busy", "launch_failed"),
        *("ecc_error", "gpu_lost"),
    }
)
"""Causes of an attempt's end that lie in its node: see ``lehr.control.retries``."""


@dataclass(frozen=True, slots=True)
class Ended:
    """How an attempt ended, as far as one of its nodes is concerned."""

    node: str
    attempt: str
    at: float
    fault: str | None
    """The cause, if it is the node's; None when the node did its part."""


@dataclass(frozen=True, slots=True)
class Exclude:
    node: str
    message: str


def failing(
    ends: Iterable[Ended], readmitted: Mapping[str, float], usable: Collection[str]
) -> list[Exclude]:
    """Nodes to exclude now.

    Args:
        ends: what ended on each node, in any order.
        readmitted: by node, since when its faults count; a node that is not there has none yet.
        usable: nodes that answer and are not excluded.
    """
    of_node: dict[str, list[Ended]] = defaultdict(list)
    for end in ends:
        if end.at > readmitted.get(end.node, 0.0):
            of_node[end.node].append(end)
    found: list[Exclude] = []
    left = set(usable)
    for node, mine in sorted(of_node.items()):
        last = sorted(mine, key=lambda end: (end.at, end.attempt))[-LIMIT:]
        if len(last) < LIMIT or any(end.fault is None for end in last):
            continue
        if not left - {node}:
            continue
        left.discard(node)
        said = ", ".join(f"{end.attempt} ({end.fault})" for end in last)
        found.append(Exclude(node, f"it failed {LIMIT} attempts in a row: {said}"))
    return found
