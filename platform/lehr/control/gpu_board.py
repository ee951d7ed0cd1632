"""The nodes' GPUs while the queue makes a plan: free, taken, reserved."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from heapq import nsmallest

from lehr.control.pending_reasons import Blocker, avoided
from lehr.control.queue_entries import Active, Reach, Saved, Waiting, reach, shown_name
from lehr.control.resources import Need, Node, NodeShare, Placement, can_ever_place, matching

_Option = tuple[int, float, str, list[int], int]
"""GPUs of a node that may be reserved: how many are busy, and for how long; the node; the GPUs; how
many of them are missing now. The smallest option is the best.
"""
_Excludes = tuple[frozenset[str], frozenset[str], frozenset[str] | None]
"""Excluded nodes, closed nodes, and the only allowed ones; see ``Waiting`` and ``Reach``."""
_ANYWHERE = Reach(frozenset())
_SOON_S = 0.001  # A run that is estimated to end now has not ended yet.


@dataclass(slots=True)
class GpuBoard:
    nodes: dict[str, Node]
    busy: dict[str, dict[int, Active]] = field(default_factory=dict)
    taken: dict[str, set[int]] = field(default_factory=dict)  # GPUs allocated in this plan.
    held: dict[str, dict[int, str]] = field(default_factory=dict)
    """Reserved GPUs: node -> GPU -> run that it is reserved for."""
    of_type: dict[tuple[str, str | None], tuple[int, ...]] = field(default_factory=dict)
    version: int = 0  # Increases whenever GPUs are allocated or reserved.
    on_cpu: Counter[str] = field(default_factory=Counter)  # Number of runs without a GPU, by node.
    reached: dict[tuple[Saved, Need], Reach] = field(default_factory=dict)
    allowed: dict[_Excludes, list[Node]] = field(default_factory=dict)
    """Nodes on which a run may be placed, by what excludes nodes for it."""
    totals: dict[tuple[object, ...], int] = field(default_factory=dict)
    """Number of GPUs on these nodes, by type."""
    opened: dict[tuple[str | None, bool], dict[str, list[int]]] = field(default_factory=dict)
    """``open`` by node, for each type of GPU; without nodes that have changed since."""
    options: dict[Need, dict[str, _Option | None]] = field(default_factory=dict)
    """What ``reserve`` may choose by node; without nodes that have changed since."""

    def open(self, node: Node, need: Need, *, held: bool = False) -> list[int]:
        """Return GPUs that are available for the need now; ``held`` includes reserved ones."""
        known = self.opened.setdefault((need.gpu_type, held), {})
        found = known.get(node.name)
        if found is None:
            busy, taken = self.busy.get(node.name, {}), self.taken.get(node.name, set())
            kept: Mapping[int, str] = {} if held else self.held.get(node.name, {})
            found = known[node.name] = [
                index
                for index in self.matching(node, need)
                if index not in busy and index not in taken and index not in kept
            ]
        return found

    def open_on(
        self, nodes: Sequence[Node], need: Need, *, held: bool = False
    ) -> list[tuple[Node, list[int]]]:
        known = self.opened.setdefault((need.gpu_type, held), {})
        for node in nodes:
            if node.name not in known:
                self.open(node, need, held=held)
        return [(node, known[node.name]) for node in nodes]

    def total(self, run: Waiting) -> int:
        key = (*self.excludes(run), run.need.gpu_type)
        if key not in self.totals:
            nodes = self.candidates(run)
            self.totals[key] = sum(len(self.matching(node, run.need)) for node in nodes)
        return self.totals[key]

    def _change(self, name: str) -> None:
        """Forget what is known of the free GPUs of a node.

        All others stay known: thousands of runs may wait for thousands of nodes, and most runs
        change a single one.
        """
        for known in self.opened.values():
            known.pop(name, None)
        for options in self.options.values():
            options.pop(name, None)

    def matching(self, node: Node, need: Need) -> tuple[int, ...]:
        """Return ``resources.matching``, cached: thousands of runs have only a few needs."""
        key = (node.name, need.gpu_type)
        if key not in self.of_type:
            self.of_type[key] = matching(node, need)
        return self.of_type[key]

    def reach(self, run: Waiting) -> Reach:
        """Return ``queue_entries.reach`` of the run's checkpoints, cached.

        A run is not bound to nodes that cannot hold it, such as a gang or a larger fork: it would
        wait for ever. It starts, and its end gives the reason if it cannot get the checkpoint.
        """
        if run.saved is None:
            return _ANYWHERE
        key = run.saved, run.need
        if key not in self.reached:
            found = reach(run.saved, self.nodes)
            able = [
                name
                for name in found.allowed or ()
                if len(self.matching(self.nodes[name], run.need)) >= run.need.per_node
            ]
            bound = found.allowed is not None and len(able) >= run.need.nodes
            self.reached[key] = found if bound else Reach(found.near)
        return self.reached[key]

    def candidates(self, run: Waiting) -> list[Node]:
        return self._without(self.excludes(run))

    def _without(self, key: _Excludes) -> list[Node]:
        excluded, closed, allowed = key
        if key not in self.allowed:
            self.allowed[key] = [
                node
                for node in self.nodes.values()
                if node.usable
                and not node.excluded
                and node.name not in excluded
                and node.name not in closed
                and (allowed is None or node.name in allowed)
            ]
        return self.allowed[key]

    def excludes(self, run: Waiting) -> _Excludes:
        """Return what decides on ``candidates``. A node that failed the run is used nevertheless if
        no others can hold it.
        """
        key = (run.excluded_nodes, run.closed_nodes, self.reach(run).allowed)
        if run.excluded_nodes and can_ever_place(run.need, self._without(key)) is not None:
            return frozenset(), *key[1:]
        return key

    def avoided(self, run: Waiting) -> str | None:
        """Return what becomes of the nodes that failed the run twice; None if none did."""
        nodes = sorted(run.excluded_nodes & self.nodes.keys())
        return avoided(nodes, used=not self.excludes(run)[0]) if nodes else None

    def fit(self, run: Waiting) -> Placement | None:
        """Place the whole gang on free, unreserved GPUs; None if it does not fit."""
        need = run.need
        if not need.gpus:
            return self._fit_on_cpu(run)
        near = self.reach(run).near
        choices = [
            (node.name not in near, len(free), node.name, free)
            for node, free in self.open_on(self.candidates(run), need)
            if len(free) >= need.per_node
        ]
        if len(choices) < need.nodes:
            return None
        return tuple(
            NodeShare(name, tuple(free[: need.per_node]))
            for _, _, name, free in nsmallest(need.nodes, choices)
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
            self._change(share.node)

    def reserve(self, run: Waiting) -> list[Blocker]:
        """Reserve GPUs for the whole gang, free ones first, on the nodes that lack the fewest.

        Return what each node lacks; an empty list if earlier reservations leave too little.
        """
        need = run.need
        known = self.options.setdefault(need, {})
        options: list[_Option] = []
        for node in self.candidates(run):
            if node.name not in known:
                known[node.name] = self._option(node, need)
            if (option := known[node.name]) is not None:
                options.append(option)
        if len(options) < need.nodes:
            return []
        self.version += 1
        blockers = []
        for _, _, name, chosen, missing in nsmallest(need.nodes, options):
            self.held.setdefault(name, {}).update(dict.fromkeys(chosen, run.run_id))
            self._change(name)
            blockers.append(self._blocker(name, run, missing, chosen))
        return blockers

    def _option(self, node: Node, need: Need) -> _Option | None:
        """Return which GPUs of a node to reserve; None if too few are left."""
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
        wait, late = 0.0, 0
        for remaining, index in later[: need.per_node - len(chosen)]:
            chosen.append(index)
            wait = max(wait, remaining)
            # What is ending is as good as free: it may be ending for this very run.
            late += remaining > 0.0
        if len(chosen) < need.per_node:
            return None
        return late, wait, node.name, chosen, need.per_node - min(len(free), need.per_node)

    def _remaining(self, node: str, index: int) -> float:
        holder = self.busy.get(node, {}).get(index)
        if holder is not None and holder.ending:
            return 0.0
        if holder is None or holder.remaining_s is None:
            return float("inf")
        return max(holder.remaining_s, _SOON_S)

    def _blocker(self, name: str, run: Waiting, missing: int, chosen: list[int]) -> Blocker:
        node, need = self.nodes[name], run.need
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
            holder=shown_name(first) if first else None,
            holder_frees=sum(h is first for h in holders),
            remaining_s=first.remaining_s if first else None,
        )
