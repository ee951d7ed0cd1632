"""Exclude nodes that keep failing.

A node is excluded when its last ``LIMIT`` attempts all failed by a fault of the node, until
somebody readmits it. Otherwise a broken machine, which is free again soonest, would use up the
retries of every waiting run. An attempt that ends in any other way clears the count, including user
errors and cancels. A fault in an attempt that was stopped for a maintenance window does not count.
The last usable node is never excluded, because then nothing would run.

Pure: values in, values out.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass

from lehr.control.retries import PATTERNS

LIMIT = 2
FAULTS = frozenset(
    {
        *("node_lost", "node_rebooted", "no_contact", "gpu_busy", "launch_failed"),
        *(pattern.cause for pattern in PATTERNS if pattern.node_fault),
    }
)
"""Causes that lie in the node: reasons of the shim, and causes read from the output."""


@dataclass(frozen=True, slots=True)
class Ended:
    """How an attempt ended on one of its nodes."""

    node: str
    attempt: str
    at: float
    fault: str | None
    """The cause, if the node is at fault; else None."""


@dataclass(frozen=True, slots=True)
class Exclude:
    node: str
    message: str


def failing(
    ends: Iterable[Ended], readmitted: Mapping[str, float], usable: Collection[str]
) -> list[Exclude]:
    """Return the nodes to exclude now.

    Args:
        ends: ended attempts of each node, in any order.
        readmitted: by node, since when its failures count; nodes without an entry were never
            readmitted.
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
        failures = ", ".join(f"{end.attempt} ({end.fault})" for end in last)
        found.append(Exclude(node, f"it failed {LIMIT} attempts in a row: {failures}"))
    return found
