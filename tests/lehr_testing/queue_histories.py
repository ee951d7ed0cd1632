"""A simulated cluster for tests of the queue: runs arrive, are placed by ``plan``, and end."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field
from typing import Any

from hypothesis import strategies as st

from lehr.control.queue import Plan, StartRun, plan
from lehr.control.queue_entries import Active, Saved, Waiting
from lehr.control.resources import Gpu, Need, Node, NodeShare, can_ever_place, matching

A100 = "NVIDIA A100-SXM4-80GB"
H100 = "NVIDIA H100 80GB HBM3"


def node(
    name: str, gpus: int, kind: str = H100, *, usable: bool = True, runs_folder: str | None = None
) -> Node:
    made = tuple(Gpu(i, kind) for i in range(gpus))
    return Node(name, made, usable=usable, runs_folder=runs_folder)


def active(run_id: str, *shares: tuple[str, tuple[int, ...]], **more: Any) -> Active:
    """A run that holds GPUs: of each node, which ones."""
    return Active(
        run_id, tuple(NodeShare(name, gpus) for name, gpus in shares), name=run_id, **more
    )


def can_resume(run: Waiting, there: Node, nodes: list[Node]) -> bool:
    """Return whether the node may have what the run resumes from, by the rule in words.

    A run that these nodes could never hold is not bound to them.
    """
    able = [
        node
        for node in nodes
        if _may_have(run, node, nodes) and len(matching(node, run.need)) >= run.need.per_node
    ]
    return there in able or len(able) < run.need.nodes


def _may_have(run: Waiting, there: Node, nodes: list[Node]) -> bool:
    if run.saved is None or run.saved.copied or not run.saved.nodes:
        return True
    by_name = {n.name: n for n in nodes}
    living = [by_name[n] for n in run.saved.nodes if n in by_name and by_name[n].usable]
    writers = living[:1] or [by_name.get(n) for n in run.saved.nodes]
    return any(
        writer is None
        or writer.name == there.name
        or None in {writer.runs_folder, there.runs_folder}
        or writer.runs_folder == there.runs_folder
        for writer in writers
    )


@dataclass
class World:
    nodes: list[Node]
    waiting: list[Waiting] = field(default_factory=list)
    running: dict[str, tuple[Waiting, StartRun, int]] = field(default_factory=dict)
    """run -> (itself, where, tick at which it ends)"""
    started_at: dict[str, int] = field(default_factory=dict)
    submitted_at: dict[str, int] = field(default_factory=dict)
    slots: dict[str, int] = field(default_factory=dict)
    newest: int = 0
    now: int = 0

    def submit(self, run: Waiting) -> None:
        self.newest = max(self.newest, run.number)
        self.waiting.append(run)
        self.submitted_at[run.run_id] = self.now

    def tick(self, durations: dict[str, int]) -> Plan:
        for run_id in [r for r, (_, _, end) in self.running.items() if end <= self.now]:
            run, _, _ = self.running.pop(run_id)
            if run.sweep_id is not None and run.max_concurrent is not None:
                self.slots[run.sweep_id] = self.newest
        held = [
            Active(
                run.run_id,
                start.placement,
                number=run.number,
                name=run.name,
                project=run.project,
                sweep_id=run.sweep_id,
                remaining_s=float(end - self.now),
            )
            for run, start, end in self.running.values()
        ]
        decided = plan(self.waiting, held, self.nodes, self.slots)
        check(decided, self.waiting, held, self.nodes)
        by_id = {run.run_id: run for run in self.waiting}
        for start in decided.starts:
            run = by_id[start.run_id]
            self.waiting.remove(run)
            self.running[run.run_id] = (run, start, self.now + durations[run.run_id])
            self.started_at[run.run_id] = self.now
        self.now += 1
        return decided


def check(decided: Plan, waiting: list[Waiting], held: list[Active], nodes: list[Node]) -> None:
    by_name = {n.name: n for n in nodes}
    by_id = {run.run_id: run for run in waiting}
    taken = {(s.node, gpu) for a in held for s in a.placement for gpu in s.gpus}
    started = [start.run_id for start in decided.starts]

    # No run is lost or placed twice: each starts, or waits with a reason.
    assert len(set(started)) == len(started)
    assert set(started) | set(decided.reasons) == set(by_id)
    assert not set(started) & set(decided.reasons)
    assert sorted(decided.order) == sorted(decided.reasons)
    assert all(decided.reasons.values())

    for start in decided.starts:
        run = by_id[start.run_id]
        others = [
            n
            for n in nodes
            if n.usable and n.name not in run.excluded_nodes and can_resume(run, n, nodes)
        ]
        last_resort = can_ever_place(run.need, others) is not None
        # The whole gang, evenly, on different nodes.
        assert len(start.placement) == run.need.nodes
        assert len({share.node for share in start.placement}) == run.need.nodes
        for share in start.placement:
            assert len(set(share.gpus)) == len(share.gpus) == run.need.per_node
            # On GPUs that are there, of the right type, on nodes that may be used.
            assert set(share.gpus) <= set(matching(by_name[share.node], run.need))
            assert by_name[share.node].usable
            assert share.node not in run.excluded_nodes or last_resort
            # Never where its checkpoint cannot be.
            assert can_resume(run, by_name[share.node], nodes)
            for gpu in share.gpus:
                # Never two on one GPU.
                assert (share.node, gpu) not in taken
                taken.add((share.node, gpu))

    # Runs without a GPU: no more on a node than it has places for.
    new = Counter(s.node for start in decided.starts for s in start.placement if not s.gpus)
    for name, number in new.items():
        before = sum(not s.gpus for a in held for s in a.placement if s.node == name)
        assert before + number <= by_name[name].cpu_places

    limits = {run.sweep_id: run.max_concurrent for run in waiting if run.sweep_id}
    for sweep, limit in limits.items():
        if limit is not None:
            before = sum(a.sweep_id == sweep for a in held)
            begun = sum(by_id[run_id].sweep_id == sweep for run_id in started)
            assert begun == 0 or before + begun <= limit


gangs = st.builds(
    lambda per, nodes, kind: Need(per * nodes, nodes, kind),
    st.sampled_from([1, 1, 1, 2, 4, 8]),
    st.sampled_from([1, 1, 1, 2]),
    st.sampled_from([None, None, "H100", "A100"]),
)
needs = st.one_of(gangs, gangs, gangs, st.just(Need(0)))
clusters = st.lists(
    st.builds(
        lambda gpus, kind, usable, folder: (gpus, kind, usable, folder),
        st.integers(1, 8),
        st.sampled_from([A100, H100]),
        st.sampled_from([True, True, True, False]),
        st.sampled_from(["shared", "shared", "own", None]),
    ),
    min_size=1,
    max_size=4,
).map(
    lambda made: [
        node(f"n{i}", g, k, usable=u, runs_folder=f"of-n{i}" if f == "own" else f)
        for i, (g, k, u, f) in enumerate(made)
    ]
)
checkpoints = st.one_of(
    st.none(),
    st.builds(
        Saved,
        st.lists(st.sampled_from(["n0", "n1", "n2", "gone"]), max_size=2, unique=True).map(tuple),
        st.sampled_from([False, False, True]),
    ),
)


@st.composite
def histories(draw):
    nodes = draw(clusters)
    arrivals = []
    for number in range(draw(st.integers(1, 25))):
        sweep = draw(st.sampled_from([None, None, "s1", "s2"]))
        arrivals.append(
            (
                draw(st.integers(0, 20)),
                Waiting(
                    run_id=f"r{number}",
                    number=number,
                    need=draw(needs),
                    priority=draw(st.sampled_from([0, 0, 0, 5, -5])),
                    project=draw(st.sampled_from(["p", "p", "q", "r"])),
                    sweep_id=sweep,
                    max_concurrent=2 if sweep == "s1" else None,
                    excluded_nodes=draw(
                        st.sampled_from([frozenset(), frozenset(), frozenset({"n0"})])
                    ),
                    saved=draw(checkpoints),
                ),
                draw(st.integers(1, 6)),
            )
        )
    arrivals.sort(key=lambda a: (a[0], a[1].number))
    return nodes, arrivals


def live_through(history) -> None:
    """Check that no GPU is used twice, no gang split, no run lost, and fitting runs start in time."""
    nodes, arrivals = history
    world = World(nodes)
    durations = {run.run_id: length for _, run, length in arrivals}
    pending = list(arrivals)
    # After the last submission, in each tick a run is active or no pending run can start.
    bound = 21 + sum(durations.values()) + len(arrivals)
    for _ in range(bound + 1):
        while pending and pending[0][0] <= world.now:
            world.submit(pending.pop(0)[1])
        world.tick(durations)
    usable = [n for n in nodes if n.usable]
    for run in world.waiting:
        there = [n for n in usable if can_resume(run, n, world.nodes)]
        assert can_ever_place(run.need, there) is not None, run
    ran = set(world.started_at)
    assert ran | {run.run_id for run in world.waiting} == {run.run_id for _, run, _ in arrivals}
