"""Decide which running runs are paused, so that a run of a higher priority can start.

Only runs with ``preemptible: true`` in their spec are paused, only for a higher priority, and only
if the waiting run then fits as a whole. A paused run saves, is queued again and resumes from there.
Each time spends one of its retries of the kind preemption, which progress refills: a run that gets
nowhere between two pauses is not paused again.

GPUs of runs that are already ending count as free, so nothing is paused twice for one run. A run
that cannot be helped bars the nodes that it could use: it would only lose what is freed there to
runs behind it.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field

from lehr.control.gpu_board import GpuBoard
from lehr.control.lifecycle import Desired, RunState, Situation
from lehr.control.queue import StartRun
from lehr.control.queue_entries import Active, Waiting, shown_name
from lehr.control.resources import Node


@dataclass(frozen=True, slots=True)
class Preemption:
    """Pause the attempt of a run: it saves, and is queued again."""

    run_id: str
    attempt: int
    message: str


@dataclass(slots=True)
class _Room:
    """The GPUs, and who will have them."""

    board: GpuBoard
    holders: dict[tuple[str, int], Active]
    claimed: set[tuple[str, int]]
    chosen: dict[str, Active] = field(default_factory=dict)  # Runs that are paused, by id.
    barred: set[str] = field(default_factory=set)

    def becomes_free(self, node: str, gpu: int) -> bool:
        """Return whether the GPU is free, or will be when what is ending has ended."""
        if (node, gpu) in self.claimed:
            return False
        holder = self.holders.get((node, gpu))
        return holder is None or holder.ending or holder.run_id in self.chosen

    def victims(self, run: Waiting, node: Node) -> list[Active] | None:
        """Return the runs to pause, so that the node has the GPUs for its part of the gang.

        The lowest priorities first, and of these the newest. None: it is not possible.
        """
        indices = self.board.matching(node, run.need)
        free = [index for index in indices if self.becomes_free(node.name, index)]
        lacking = run.need.per_node - len(free)
        if lacking <= 0:
            return []
        frees: dict[str, int] = {}
        found: dict[str, Active] = {}
        for index in indices:
            holder = self.holders.get((node.name, index))
            if (
                holder is not None
                and (node.name, index) not in self.claimed
                and index not in free
                and holder.preemptible
                and holder.priority < run.priority
            ):
                found[holder.run_id] = holder
                frees[holder.run_id] = frees.get(holder.run_id, 0) + 1
        picked: list[Active] = []
        for holder in sorted(found.values(), key=lambda one: (one.priority, -one.number)):
            if lacking <= 0:
                break
            picked.append(holder)
            lacking -= frees[holder.run_id]
        if lacking > 0:
            return None
        # A later, larger one may have made an earlier one unnecessary.
        for holder in reversed(picked[:]):
            if lacking + frees[holder.run_id] <= 0:
                picked.remove(holder)
                lacking += frees[holder.run_id]
        return picked

    def claim(self, run: Waiting, nodes: Iterable[Node]) -> None:
        for node in nodes:
            free = [
                i for i in self.board.matching(node, run.need) if self.becomes_free(node.name, i)
            ]
            self.claimed.update((node.name, index) for index in free[: run.need.per_node])


def may_be_preempted(
    situation: Situation, *, preemptible: bool, used: int, allowed: int, starting: bool = False
) -> bool:
    """Return whether a run may be paused now for one of a higher priority.

    ``used``, ``allowed``: retries of the kind preemption. ``starting``: also while it starts.
    """
    states = {RunState.RUNNING, RunState.STARTING} if starting else {RunState.RUNNING}
    trains = situation.state in states and situation.desired is Desired.RUN
    return preemptible and trains and used < allowed


def preemptions(
    turn: Sequence[Waiting],
    starts: Iterable[StartRun],
    active: Iterable[Active],
    nodes: Sequence[Node],
) -> list[Preemption]:
    """Return the runs to pause.

    ``turn``: the runs that would start if there was room, in the order of the queue.
    """
    active = list(active)
    lowest = min((one.priority for one in active if one.preemptible), default=None)
    if lowest is None:
        return []
    room = _Room(
        GpuBoard({node.name: node for node in nodes}),
        {
            (share.node, gpu): holder
            for holder in active
            for share in holder.placement
            for gpu in share.gpus
        },
        {(share.node, gpu) for one in starts for share in one.placement for gpu in share.gpus},
    )
    found: list[Preemption] = []
    for run in turn:
        if run.priority <= lowest:
            break  # The others have no higher priority.
        if run.need.gpus:
            found += _for_run(run, room)
    return found


def _for_run(run: Waiting, room: _Room) -> Iterator[Preemption]:
    candidates = [
        node
        for node in room.board.candidates(run)
        if len(room.board.matching(node, run.need)) >= run.need.per_node
    ]
    options = []
    for node in candidates:
        victims = room.victims(run, node) if node.name not in room.barred else None
        if victims is not None:
            lost = sum(len(share.gpus) for one in victims for share in one.placement)
            worst = max((one.priority for one in victims), default=run.priority - 1)
            options.append((lost, worst, node.name, victims))
    if len(options) < run.need.nodes:
        room.barred.update(node.name for node in candidates)
        return
    picked = sorted(options, key=lambda option: option[:3])[: run.need.nodes]
    for _, _, _, victims in picked:
        for victim in victims:
            if victim.run_id in room.chosen:
                continue
            room.chosen[victim.run_id] = victim
            message = f"paused for {shown_name(run)}, which has priority {run.priority}"
            yield Preemption(victim.run_id, victim.attempt, message)
    room.claim(run, [room.board.nodes[name] for _, _, name, _ in picked])
