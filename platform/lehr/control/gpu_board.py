"""The nodes' GPUs while the queue makes a plan: free, taken, reserved."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field

from lehr.control.locality import Reach, Saved, reach
from lehr.control.pending_reasons import Blocker
from lehr.control.queue_entries import Active, Waiting, shown_name
from lehr.control.resources import Need, Node, NodeShare, Placement, matching

_ANYWHERE = Reach(frozenset())
_SOON_S = 0.001
"""A run that is estimated to end now has not ended yet."""


@dataclass(slots=True)
class GpuBoard:
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
    reached: dict[tuple[Saved, Need], Reach] = field(default_factory=dict)

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
        """Return ``locality.reach`` of the run's checkpoints, cached.

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
        allowed = self.reach(run).allowed
        return [
            node
            for node in self.nodes.values()
            if node.usable
            and not node.excluded
            and node.name not in run.excluded_nodes
            and node.name not in run.closed_nodes
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
        options: list[tuple[int, float, str, list[int], int]] = []
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
            wait, late = 0.0, 0
            for remaining, index in later[: need.per_node - len(chosen)]:
                chosen.append(index)
                wait = max(wait, remaining)
                # What is ending is as good as free: it may be ending for this very run.
                late += remaining > 0.0
            if len(chosen) == need.per_node:
                missing = need.per_node - min(len(free), need.per_node)
                options.append((late, wait, node.name, chosen, missing))
        if len(options) < need.nodes:
            return []
        options.sort()
        self.version += 1
        blockers = []
        for _, _, name, chosen, missing in options[: need.nodes]:
            self.held.setdefault(name, {}).update(dict.fromkeys(chosen, run.run_id))
            blockers.append(self._blocker(name, run, missing, chosen))
        return blockers

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
            holder=shown_name(first, to=run.project) if first else None,
            holder_frees=sum(h is first for h in holders),
            remaining_s=first.remaining_s if first else None,
        )
