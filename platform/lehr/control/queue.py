"""Decide which queued runs start now, where, and why the others wait.

The rules, in order:

1. **Priority**, higher first.
2. Within a priority **projects share**: a run ranks by the number of GPUs that earlier runs of its
   own project hold or wait for. So a hundred waiting trials of one project do not block a single
   run of another. A run never moves back because of later runs of its own project.
3. Otherwise **first come, first served**, by order of submission. One project alone is plain FIFO.
4. **All or none**: a run's whole gang is placed at once. Of the nodes that suffice, it takes
   those with the fewest free GPUs, so that empty nodes stay empty for large runs. A run that
   resumes takes nodes that have its checkpoint first, and no node that cannot get it.
5. **No starvation**: a run that does not fit reserves GPUs on the nodes where the fewest are
   missing: those that are free now, and those that become free next. Later runs may start beside
   that reservation (backfill), never on it, so they cannot delay it. Runs of a higher priority
   may start on it.
6. A sweep runs at most ``max_concurrent`` of its runs at a time. A run counts until its end is
   recorded, which is a little later than its exit. Its other runs reserve nothing and do not count
   in rule 2. A run that had to wait for a slot of its sweep queues from the moment
   when the slot became free. Otherwise each run of the sweep would be placed before a large waiting
   run, and the GPUs reserved for that run would stay idle until the whole sweep has ended.
7. A project with a quota holds at most so many GPUs. Its runs are counted by priority, then by
   order of submission. Once one is over the quota, those behind it wait as well: smaller runs would
   otherwise overtake it for ever. They reserve nothing. A run that needs more than the whole quota
   waits alone.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType

from lehr.control import pending_reasons
from lehr.control.gpu_board import GpuBoard
from lehr.control.queue_entries import Active, Kind, Waiting, shown_name
from lehr.control.resources import Need, Node, Placement, can_ever_place, matching


@dataclass(frozen=True, slots=True)
class StartRun:
    run_id: str
    placement: Placement
    resume_from: str | None = None  # The checkpoint that it resumes from.
    message: str | None = None  # Why it starts there, if that is not obvious.


@dataclass(frozen=True, slots=True)
class Plan:
    starts: tuple[StartRun, ...]
    reasons: dict[str, str]  # The reason for every run that does not start.
    order: tuple[str, ...]  # All runs that keep waiting, in order.
    turn: tuple[Waiting, ...] = ()
    """Those that wait only for GPUs: no limit of a sweep or quota stops them."""


def plan(
    waiting: Sequence[Waiting],
    active: Sequence[Active],
    nodes: Sequence[Node],
    slots: Mapping[str, int] = MappingProxyType({}),
    quotas: Mapping[str, int] = MappingProxyType({}),
    exited: Mapping[str, str] = MappingProxyType({}),
) -> Plan:
    """Decide what starts now, and the reason for every other queued run.

    Args:
        waiting: the queued runs.
        active: what holds GPUs.
        nodes: the cluster's nodes.
        slots: for each sweep with a limit: when its last slot became free, as the number of the run
            that was the newest at that moment. Runs of the sweep queue behind that run.
        quotas: for each project with a quota: the maximum number of GPUs that its runs hold.
        exited: sweeps of the runs that hold nothing any more and whose end is not recorded, by run.
    """
    board = GpuBoard({node.name: node for node in nodes})
    for holder in active:
        for share in holder.placement:
            board.on_cpu[share.node] += not share.gpus
            if share.node in board.nodes:
                board.busy.setdefault(share.node, {}).update(dict.fromkeys(share.gpus, holder))

    possible, why = _possible_now(waiting, board)
    allowed, throttled = _within_sweep_limits(possible, active, exited)
    why.update(throttled)
    allowed, over = _within_quotas(allowed, active, quotas)
    why.update(over)
    order = _in_turn(allowed, active, slots)

    starts: list[StartRun] = []
    queued = {run.run_id: run for run in waiting}
    unplaceable: set[Kind] = set()
    reasons_by_need: dict[Kind, tuple[int, str]] = {}
    first_of: set[int] = set()
    for run in order:
        kind = run.kind
        # Free GPUs only decrease during a plan, so what did not fit once will not fit later.
        placement = None if kind in unplaceable else board.fit(run)
        if placement is not None:
            board.take(placement)
            why_there = board.avoided(run)
            starts.append(StartRun(run.run_id, placement, run.resume_from, why_there))
            continue
        unplaceable.add(kind)
        next_in_line = run.priority not in first_of
        first_of.add(run.priority)
        version, reason = reasons_by_need.get(kind, (-1, ""))
        if next_in_line or version != board.version:
            version = board.version
            reason = _reason(run, board, queued, next_in_line=next_in_line)
            if not next_in_line and version == board.version:
                # Nothing was left to reserve, so nothing is left for the next run.
                reasons_by_need[kind] = version, reason
        why[run.run_id] = reason
    started = {start.run_id for start in starts}
    turn = tuple(run for run in order if run.run_id not in started)
    placed = {run.run_id for run in order}
    rest = sorted(
        (run for run in waiting if run.run_id not in placed),
        key=lambda run: (-run.priority, run.number),
    )
    return Plan(tuple(starts), why, tuple(run.run_id for run in (*turn, *rest)), turn)


def _reason(
    run: Waiting, board: GpuBoard, queued: Mapping[str, Waiting], *, next_in_line: bool
) -> str:
    """Reserve GPUs for a run that does not fit, and return the reason why it waits."""
    need = run.need
    candidates = board.candidates(run)
    only = pending_reasons.only_on(sorted(board.reach(run).allowed or ()))
    if (avoided := board.avoided(run)) is not None:
        only += f"; {avoided}"
    if not need.gpus:
        places = sum(node.cpu_places for node in candidates if node.gpus)
        return pending_reasons.cpu_places(places) + only
    free_on = board.open_on(candidates, need, held=True)
    free = sum(len(indices) for _, indices in free_on)
    kept = Counter(
        holder
        for node, indices in free_on
        if indices
        for index, holder in board.held.get(node.name, {}).items()
        if index in indices
    )
    keeper = queued[kept.most_common(1)[0][0]] if kept else None
    blockers = board.reserve(run)
    text = pending_reasons.waits(
        need,
        blockers,
        free=free,
        total=board.total(run),
        keeper=shown_name(keeper) if keeper else None,
        next_at=run.priority if next_in_line else None,
        out=_excluded(need, board.nodes.values()),
    )
    return text + only


def _possible_now(
    waiting: Sequence[Waiting], board: GpuBoard
) -> tuple[list[Waiting], dict[str, str]]:
    """Split runs by whether they may start now, on nodes that answer; return the others' reasons.

    The others reserve nothing, or they would delay runs that can start.
    """
    possible: list[Waiting] = []
    why: dict[str, str] = {}
    known: dict[object, str | None] = {}
    for run in waiting:
        kind = (run.need, *board.excludes(run))
        if kind not in known:
            known[kind] = _impossible(run, board)
        reason = known[kind] or run.pause
        if reason is None:
            possible.append(run)
        else:
            why[run.run_id] = reason
    return possible, why


def _impossible(run: Waiting, board: GpuBoard) -> str | None:
    need, nodes = run.need, list(board.nodes.values())
    if (never := can_ever_place(need, nodes)) is not None:
        return never
    if can_ever_place(need, board.candidates(run)) is None:
        return None
    faulty = [(node.name, node.problem) for node in nodes if node.problem is not None]
    gone = [
        node
        for node in nodes
        if not node.usable and node.problem is None and not node.left and matching(node, need)
    ]
    silent = [node.name for node in gone if node.away is None]
    text = pending_reasons.no_usable_node(
        need,
        silent,
        _excluded(need, nodes),
        faulty,
        sorted(node.name for node in nodes if node.usable and node.name in run.closed_nodes),
        left=sorted(node.name for node in nodes if node.left and matching(node, need)),
        away=sorted((node.name, node.away) for node in gone if node.away is not None),
    )
    return text + pending_reasons.only_on(sorted(board.reach(run).allowed or ()))


def _excluded(need: Need, nodes: Iterable[Node]) -> list[str]:
    """Return the excluded nodes that a user can readmit, and that have such GPUs."""
    out = (node for node in nodes if node.excluded and not node.left)
    return sorted(node.name for node in out if matching(node, need))


def _within_sweep_limits(
    waiting: Sequence[Waiting], active: Sequence[Active], exited: Mapping[str, str]
) -> tuple[list[Waiting], dict[str, str]]:
    running = Counter(holder.sweep_id for holder in active if holder.sweep_id)
    running.update(exited.values())
    allowed, why = [], {}
    for run in sorted(waiting, key=lambda run: (-run.priority, run.number)):
        limit = run.max_concurrent
        if run.sweep_id is not None and limit is not None:
            if running[run.sweep_id] >= limit:
                why[run.run_id] = pending_reasons.sweep_limit(run.sweep_name or run.sweep_id, limit)
                continue
            running[run.sweep_id] += 1
        allowed.append(run)
    return allowed, why


def _in_turn(
    waiting: Sequence[Waiting], active: Sequence[Active], slots: Mapping[str, int]
) -> list[Waiting]:
    """Sort by priority, then by the GPUs that the run's project has ahead of it, then by
    submission, or by when its sweep's slot became free.
    """

    def place(run: Waiting) -> tuple[int, bool, int]:
        slot = slots.get(run.sweep_id or "", 0)
        return max(run.number, slot), run.number < slot, run.number

    several = len({run.project for run in waiting}) > 1
    ahead: dict[str, int] = {}
    if several:
        held: dict[str, list[tuple[int, int]]] = {}
        for holder in active:
            size = sum(len(share.gpus) for share in holder.placement)
            held.setdefault(holder.project, []).append((holder.number, size))
        requested: Counter[tuple[str, int]] = Counter()
        for run in sorted(waiting, key=place):
            at = place(run)[0]
            earlier = sum(n for number, n in held.get(run.project, ()) if number < at)
            ahead[run.run_id] = earlier + requested[run.project, run.priority]
            requested[run.project, run.priority] += run.need.gpus
    return sorted(waiting, key=lambda run: (-run.priority, ahead.get(run.run_id, 0), *place(run)))


def _within_quotas(
    waiting: Sequence[Waiting], active: Iterable[Active], quotas: Mapping[str, int]
) -> tuple[list[Waiting], dict[str, str]]:
    """Split runs by the quotas of their projects; return the others' reasons."""
    if not quotas:
        return list(waiting), {}
    held: Counter[str] = Counter()
    for holder in active:
        held[holder.project] += sum(len(share.gpus) for share in holder.placement)
    requested: Counter[str] = Counter()
    full: set[str] = set()
    allowed, why = [], {}
    for run in sorted(waiting, key=lambda run: (-run.priority, run.number)):
        quota, need = quotas.get(run.project), run.need.gpus
        if quota is None or not need:
            allowed.append(run)
        elif need > quota:
            why[run.run_id] = pending_reasons.above_quota(run.need, run.project, quota)
        elif run.project in full or held[run.project] + requested[run.project] + need > quota:
            full.add(run.project)
            used = held[run.project]
            why[run.run_id] = pending_reasons.over_quota(run.project, used, quota)
        else:
            requested[run.project] += need
            allowed.append(run)
    return allowed, why
