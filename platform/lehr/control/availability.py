"""Decide what follows when a node is available until a time, as a rented one is.

``MARGIN_S`` before that time, what runs on the node is stopped: a training saves a checkpoint, is
queued again without spending a retry, and resumes from it on other nodes. A run that saved nothing
new spends a retry of the kind preemption. From then on nothing starts on the node. A node that is
shut down at its end is not excluded for the runs that it had.

Before, a run that saves may start at any time, since it loses nothing. Lehr's own trainings save; a
program does if its spec names ``trainer.saves``, or if it has a checkpoint of its own already. Any
other run starts only if its time limit ends it ``MARGIN_S`` before it would be stopped. Estimates
do not decide here, since a slow run would lose its work.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, replace

from lehr.control.queue_entries import Active, Waiting

MARGIN_S = 300.0
"""Time to save: this much before its end, the runs of a node are stopped. And a time limit must end
this much before: a run starts a moment after the decision, and takes a while to stop at its limit.
"""


@dataclass(frozen=True, slots=True)
class NodeEnd:
    stops_in_s: float
    """Seconds until its runs are stopped. Negative or 0: they are, and nothing starts on it."""
    text: str  # The time at which it ends, for people.

    @property
    def near(self) -> bool:
        return self.stops_in_s <= 0.0


@dataclass(frozen=True, slots=True)
class Stop:
    """Stop the attempt of a run: it saves, and is queued again."""

    run_id: str
    attempt: int
    message: str


def too_short(end: NodeEnd, run: Waiting) -> bool:
    """Return whether the run may not start on the node now."""
    if end.near:
        return True
    limit_s = run.time_limit_s
    return not run.can_save and (limit_s is None or limit_s + MARGIN_S > end.stops_in_s)


def without_ending_nodes(waiting: list[Waiting], ends: Mapping[str, NodeEnd]) -> list[Waiting]:
    """Return the runs, each with the nodes on which it may not start in ``closed_nodes``."""
    if not ends:
        return waiting
    return [
        replace(run, closed_nodes=frozenset(node for node in ends if too_short(ends[node], run)))
        for run in waiting
    ]


def stops(holders: Iterable[Active], ends: Mapping[str, NodeEnd]) -> list[Stop]:
    """Return the runs to stop, because one of their nodes is near its end."""
    near = {node: end for node, end in ends.items() if end.near}
    return [
        Stop(holder.run_id, holder.attempt, f"node {nodes[0]} {until(near[nodes[0]])}")
        for holder in holders
        if holder.attempt
        and not holder.ending
        and (nodes := [share.node for share in holder.placement if share.node in near])
    ]


def until(end: NodeEnd) -> str:
    return f"is available until {end.text}"


def limits_s(ends: Iterable[NodeEnd], waiting: Iterable[Waiting]) -> Iterator[float]:
    """Yield in how many seconds a node's end comes too near: for all, or for a waiting run."""
    lengths = {run.time_limit_s for run in waiting if not run.can_save and run.time_limit_s}
    for end in ends:
        yield end.stops_in_s
        yield from (end.stops_in_s - length - MARGIN_S for length in lengths)
