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
6. A sweep runs at most ``max_concurrent`` of its runs at a time. Its other runs reserve nothing and
   do not count in rule 2. A run that had to wait for a slot of its sweep queues from the moment
   that the slot became free: otherwise each run of the sweep would be placed before a large run
   that waits, whose reserved GPUs would stay idle until the whole sweep has ended.

Pure: values in, values out.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from types import MappingProxyType

from lehr.control import pending_reasons
from lehr.control.locality import Reach, Saved, reach
from lehr.control.pending_reasons import Blocker
from lehr.control.resources import (
    Need,
    Node,
    NodeShare,
    Placement,
    can_ever_place,
    matching,
)


@dataclass(frozen=True, slots=True)
class Waiting:
    run_id: str
    number: int
    """Order of submission."""
    need: Need
    name: str = ""
    priority: int = 0
    project: str = "default"
    sweep_id: str | None = None
    sweep_name: str | None = None
    max_concurrent: int | None = None
    """Limit of its sweep."""
    excluded_nodes: frozenset[str] = frozenset()
    """Nodes that failed this run twice."""
    saved: Saved | None = None
    """The checkpoints that it resumes from; None: it starts at step 0."""

    @property
    def kind(self) -> _Kind:
        """Runs of one kind fit on the same nodes."""
        return self.need, self.excluded_nodes, self.saved


_Kind = tuple[Need, frozenset[str], Saved | None]
_ANYWHERE = Reach(frozenset())


@dataclass(frozen=True, slots=True)
class Active:
    """Something that holds GPUs: an attempt of a run, or an orphan of a lost one."""

    run_id: str
    placement: Placement
    number: int = 0
    name: str = ""
    project: str = "default"
    sweep_id: str | None = None
    remaining_s: float | None = None
    """Estimated remaining seconds; None when unknown."""


@dataclass(frozen=True, slots=True)
class StartRun:
    run_id: str
    placement: Placement


@dataclass(frozen=True, slots=True)
class Plan:
    starts: tuple[StartRun, ...]
    reasons: dict[str, str]
    """The reason for every run that does not start."""
    order: tuple[str, ...]
    """All runs that keep waiting, in order."""


@dataclass(slots=True)
class _Board:
    """The nodes' GPUs while a plan is made."""

    nodes: dict[str, Node]
    busy: dict[str, dict[int, Active]] = field(default_factory=dict)
    taken: dict[str, set[int]] = field(default_factory=dict)
    """GPUs allocated in this plan."""
    held: dict[str, dict[int, str]] = field(default_factory=dict)
    """Reserved GPUs: node -> GPU -> run that it is reserved for."""
    of_type: dict[tuple[str, str | None], tuple[int, ...]] = field(default_factory=dict)
    version: int = 0
    """Increases whenever GPUs are allocated or reserved."""
    on_cpu: Counter[str] = field(default_factory=Counter)
    """Number of runs without a GPU, by node."""
    reached: dict[Saved, Reach] = field(default_factory=dict)

    def open(self, node: Node, need: Need, *, held: bool = False) -> list[int]:
        """Return GPUs that are available for the need now; ``held`` includes reserved ones."""
        busy, taken = self.busy.get(node.name, {}), self.taken.get(node.name, set())
        kept: Mapping[int, str] = {} if held else self.held.get(node.name, {})
        return [
            index
            for index in self.matching(node, need)
            if index not in busy and index not in taken and index not in kept
        ]

    def matching(self, node: Node, need: Need) -> tuple[int, ...]:
        """Return ``resources.matching``, cached: thousands of runs have only a few needs."""
        key = (node.name, need.gpu_type)
        if key not in self.of_type:
            self.of_type[key] = matching(node, need)
        return self.of_type[key]

    def reach(self, run: Waiting) -> Reach:
        """Return ``locality.reach`` of the run's checkpoints, cached."""
        if run.saved is None:
            return _ANYWHERE
        if run.saved not in self.reached:
            self.reached[run.saved] = reach(run.saved, self.nodes)
        return self.reached[run.saved]

    def candidates(self, run: Waiting) -> list[Node]:
        allowed = self.reach(run).allowed
        return [
            node
            for node in self.nodes.values()
            if node.usable
            and not node.excluded
            and node.name not in run.excluded_nodes
            and (allowed is None or node.name in allowed)
        ]

    def fit(self, run: Waiting) -> Placement | None:
        """Place the whole gang on free, unreserved GPUs; None if it does not fit."""
        need = run.need
        if not need.gpus:
            return self._fit_on_cpu(run)
        near = self.reach(run).near
        choices: list[tuple[bool, int, str, list[int]]] = []
        for node in self.candidates(run):
            free = self.open(node, need)
            if len(free) >= need.per_node:
                choices.append((node.name not in near, len(free), node.name, free))
        if len(choices) < need.nodes:
            return None
        choices.sort()
        return tuple(
            NodeShare(name, tuple(free[: need.per_node]))
            for _, _, name, free in choices[: need.nodes]
        )

    def _fit_on_cpu(self, run: Waiting) -> Placement | None:
        """Return the node with the most places left for runs without GPUs."""
        near = self.reach(run).near
        left = [
            (node.name not in near, self.on_cpu[node.name] - node.cpu_places, node.name)
            for node in self.candidates(run)
            if node.gpus and self.on_cpu[node.name] < node.cpu_places
        ]
        return (NodeShare(min(left)[-1], ()),) if left else None

    def take(self, placement: Placement) -> None:
        self.version += 1
        for share in placement:
            self.on_cpu[share.node] += not share.gpus
            self.taken.setdefault(share.node, set()).update(share.gpus)

    def reserve(self, run: Waiting) -> list[Blocker]:
        """Reserve GPUs for the whole gang, free ones first, on the nodes that lack the fewest.

        Return what each node lacks; an empty list if earlier reservations leave too little.
        """
        need = run.need
        options: list[tuple[int, float, str, list[int]]] = []
        for node in self.candidates(run):
            kept = self.held.get(node.name, {})
            free = self.open(node, need)
            # GPUs allocated in this plan are freed last: the end of their runs is unknown.
            later = sorted(
                (
                    (self._remaining(node.name, index), index)
                    for index in self.matching(node, need)
                    if index not in kept and index not in free
                ),
            )
            chosen = free[: need.per_node]
            wait = 0.0
            for remaining, index in later[: need.per_node - len(chosen)]:
                chosen.append(index)
                wait = max(wait, remaining)
            if len(chosen) == need.per_node:
                missing = need.per_node - min(len(free), need.per_node)
                options.append((missing, wait, node.name, chosen))
        if len(options) < need.nodes:
            return []
        options.sort()
        self.version += 1
        blockers = []
        for missing, _, name, chosen in options[: need.nodes]:
            self.held.setdefault(name, {}).update(dict.fromkeys(chosen, run.run_id))
            blockers.append(self._blocker(name, need, missing, chosen))
        return blockers

    def _remaining(self, node: str, index: int) -> float:
        holder = self.busy.get(node, {}).get(index)
        if holder is None or holder.remaining_s is None:
            return float("inf")
        return holder.remaining_s

    def _blocker(self, name: str, need: Need, missing: int, chosen: list[int]) -> Blocker:
        node = self.nodes[name]
        holders = [self.busy[name][index] for index in chosen if index in self.busy.get(name, {})]
        first = min(
            holders,
            key=lambda h: float("inf") if h.remaining_s is None else h.remaining_s,
            default=None,
        )
        return Blocker(
            node=name,
            free=len(self.open(node, need, held=True)),
            size=len(self.matching(node, need)),
            missing=missing,
            holder=first.name or first.run_id if first else None,
            holder_frees=sum(h is first for h in holders),
            remaining_s=first.remaining_s if first else None,
        )


def plan(
    waiting: Sequence[Waiting],
    active: Sequence[Active],
    nodes: Sequence[Node],
    slots: Mapping[str, int] = MappingProxyType({}),
) -> Plan:
    """Decide what starts now, and the reason for every other queued run.

    ``slots``: by sweep with a limit, the number of the newest run at the moment when a run of the
    sweep ended last. Runs of the sweep queue behind it.
    """
    board = _Board({node.name: node for node in nodes})
    for holder in active:
        for share in holder.placement:
            board.on_cpu[share.node] += not share.gpus
            if share.node in board.nodes:
                board.busy.setdefault(share.node, {}).update(dict.fromkeys(share.gpus, holder))

    possible, why = _possible_now(waiting, board)
    allowed, throttled = _within_sweep_limits(possible, active)
    why.update(throttled)
    order = _in_turn(allowed, active, slots)

    starts: list[StartRun] = []
    names = {run.run_id: run.name or run.run_id for run in waiting}
    unplaceable: set[_Kind] = set()
    reasons_by_need: dict[_Kind, tuple[int, str]] = {}
    first_of: set[int] = set()
    for run in order:
        kind = run.kind
        # Free GPUs only decrease during a plan, so what did not fit once will not fit later.
        placement = None if kind in unplaceable else board.fit(run)
        if placement is not None:
            board.take(placement)
            starts.append(StartRun(run.run_id, placement))
            continue
        unplaceable.add(kind)
        next_in_line = run.priority not in first_of
        first_of.add(run.priority)
        version, reason = reasons_by_need.get(kind, (-1, ""))
        if next_in_line or version != board.version:
            version = board.version
            reason = _reason(run, board, names, next_in_line=next_in_line)
            if not next_in_line and version == board.version:
                # Nothing was left to reserve, so nothing is left for the next run.
                reasons_by_need[kind] = version, reason
        why[run.run_id] = reason
    started = {start.run_id for start in starts}
    turn = [run.run_id for run in order if run.run_id not in started]
    placed = started | set(turn)
    rest = sorted(
        (run for run in waiting if run.run_id not in placed),
        key=lambda run: (-run.priority, run.number),
    )
    return Plan(tuple(starts), why, (*turn, *(run.run_id for run in rest)))


def _reason(run: Waiting, board: _Board, names: Mapping[str, str], *, next_in_line: bool) -> str:
    """Reserve GPUs for a run that does not fit, and return the reason why it waits."""
    need = run.need
    candidates = board.candidates(run)
    only = pending_reasons.only_on(sorted(board.reach(run).allowed or ()))
    if not need.gpus:
        places = sum(node.cpu_places for node in candidates if node.gpus)
        return pending_reasons.cpu_places(places) + only
    free_on = [(node, board.open(node, need, held=True)) for node in candidates]
    free = sum(len(indices) for _, indices in free_on)
    kept = Counter(
        holder
        for node, indices in free_on
        for index, holder in board.held.get(node.name, {}).items()
        if index in indices
    )
    keeper = names[kept.most_common(1)[0][0]] if kept else None
    blockers = board.reserve(run)
    text = pending_reasons.waits(
        need,
        blockers,
        free=free,
        total=sum(len(board.matching(node, need)) for node in candidates),
        keeper=keeper,
        next_at=run.priority if next_in_line else None,
        out=sorted(n.name for n in board.nodes.values() if n.excluded and matching(n, need)),
    )
    return text + only


def _possible_now(
    waiting: Sequence[Waiting], board: _Board
) -> tuple[list[Waiting], dict[str, str]]:
    """Split runs by whether nodes that answer could hold them; return the others' reasons.

    The others reserve nothing, or they would delay runs that can start.
    """
    possible: list[Waiting] = []
    why: dict[str, str] = {}
    known: dict[_Kind, str | None] = {}
    for run in waiting:
        kind = run.kind
        if kind not in known:
            known[kind] = _impossible(run, board)
        reason = known[kind]
        if reason is None:
            possible.append(run)
        else:
            why[run.run_id] = reason
    return possible, why


def _impossible(run: Waiting, board: _Board) -> str | None:
    need, nodes = run.need, list(board.nodes.values())
    if (never := can_ever_place(need, nodes)) is not None:
        return never
    if can_ever_place(need, board.candidates(run)) is None:
        return None
    faulty = [(node.name, node.problem) for node in nodes if node.problem is not None]
    silent = [
        node.name
        for node in nodes
        if not node.usable and node.problem is None and matching(node, need)
    ]
    out = sorted(node.name for node in nodes if node.excluded and matching(node, need))
    text = pending_reasons.no_usable_node(need, silent, sorted(run.excluded_nodes), out, faulty)
    return text + pending_reasons.only_on(sorted(board.reach(run).allowed or ()))


def _within_sweep_limits(
    waiting: Sequence[Waiting], active: Sequence[Active]
) -> tuple[list[Waiting], dict[str, str]]:
    running = Counter(holder.sweep_id for holder in active if holder.sweep_id)
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
        asked: Counter[tuple[str, int]] = Counter()
        for run in sorted(waiting, key=place):
            at = place(run)[0]
            earlier = sum(n for number, n in held.get(run.project, ()) if number < at)
            ahead[run.run_id] = earlier + asked[run.project, run.priority]
            asked[run.project, run.priority] += run.need.gpus
    return sorted(waiting, key=lambda run: (-run.priority, ahead.get(run.run_id, 0), *place(run)))
