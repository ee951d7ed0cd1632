"""Find the nodes at fault for the end of an attempt, and exclude those that keep failing.

A node is excluded when its last ``LIMIT`` attempts all failed by a fault of the node, until
somebody readmits it. Otherwise a broken machine, which is free again soonest, would use up the
retries of every waiting run. An attempt that ends in any other way clears the count, including user
errors and cancels. A fault in an attempt that was stopped at the end of its node does not count.
The last usable node is never excluded, because then nothing would run.

A single run avoids a node that failed it twice, for ``AVOIDED_S`` and as long as another node can
hold it (``GpuBoard.excludes``). A full disk is no fault of a node. A hang counts for its run alone:
the cause may be in its code.
"""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from lehr.control.error_patterns import PATTERNS
from lehr.control.exits import exit_report
from lehr.control.retries import classify

LEFT = "it has left: lehr node leave"
"""The reason of an exclusion that ends when the node joins again."""
LIMIT = 2
AVOIDED_S = 600.0
FAULTS = frozenset(
    {
        *("node_lost", "node_rebooted", "no_contact", "gpu_busy", "launch_failed"),
        *(pattern.cause for pattern in PATTERNS if pattern.node_fault),
    }
)
"""Causes that lie in the node: reasons of the shim, and causes read from the output."""
HANG = "hang"
_HUNG = re.compile(r"hang at step [\d,]+: ranks? [\d, ]+ on ([^\s:]+)")
"""The trainer's sentence, where it names ranks of one node."""


@dataclass(frozen=True, slots=True)
class Ended:
    """How an attempt ended on one of its nodes."""

    node: str
    attempt: str
    at: float
    fault: str | None  # The cause, if the node is at fault; else None.


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
        if len(last) < LIMIT or any(end.fault in {None, HANG} for end in last):
            continue
        if not left - {node}:
            continue
        left.discard(node)
        failures = ", ".join(f"{end.attempt} ({end.fault})" for end in last)
        found.append(Exclude(node, f"it failed {LIMIT} attempts in a row: {failures}"))
    return found


def avoided(ends: Iterable[Ended], readmitted: Mapping[str, float], now: float) -> dict[str, float]:
    """Return the nodes that failed a run twice by their own fault, each with the seconds left for
    which it starts on others.

    Args:
        ends: the ends of the run's attempts on their nodes.
        readmitted: by node, since when its failures count.
        now: the time, by the clock of the ends.
    """
    faults: dict[str, list[float]] = defaultdict(list)
    for end in ends:
        if end.fault is not None and end.at > readmitted.get(end.node, 0.0):
            faults[end.node].append(end.at)
    left = {node: max(at) + AVOIDED_S - now for node, at in faults.items() if len(at) >= LIMIT}
    # A clock that was set back must not make it long.
    return {node: seconds for node, seconds in left.items() if 0.0 < seconds < 2 * AVOIDED_S}


def ends_of(attempt: str, at: float, nodes: Sequence[str], note: Mapping[str, Any]) -> list[Ended]:
    """Return how an attempt ended on its nodes, where the node has failed or succeeded.

    ``nodes``: by node rank. ``note``: the exit report.
    """
    at_fault = faulty_nodes(nodes, note)
    # If one node broke a gang, the other nodes neither failed nor succeeded.
    return [
        Ended(node, attempt, at, at_fault.get(node))
        for node in nodes
        if node in at_fault or not at_fault
    ]


def faulty_nodes(nodes: Sequence[str], note: Mapping[str, Any]) -> dict[str, str]:
    """Return the nodes at fault for an exit, each with the cause. ``nodes``: by node rank."""
    if note.get("node") is not None:  # A person or the server decided its end.
        cause = str(note.get("reason"))
        return {str(note["node"]): cause} if cause in FAULTS else {}
    parts = note.get("parts")
    if not isinstance(parts, dict) or not parts:
        parts = {"0": note}
    hung = [node for node in _HUNG.findall(str(note)) if node in nodes]
    if hung:
        return {hung[0]: HANG}
    found = {}
    for rank, part in parts.items():
        if not isinstance(part, dict):
            continue
        ended = exit_report(part)
        cause = classify(ended, None).name
        failed = part.get("code") != 0
        if failed and cause in FAULTS and int(rank) < len(nodes) and not part.get("synthetic"):
            found[nodes[int(rank)]] = cause
    return found
