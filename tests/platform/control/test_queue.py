"""The queue: its invariants over random histories, and its order."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from lehr.control.gpu_board import GpuBoard
from lehr.control.queue import StartRun, plan
from lehr.control.queue_entries import Active, Waiting
from lehr.control.resources import Gpu, Need, Node, NodeShare
from lehr_testing.properties import examples
from lehr_testing.queue_histories import World, active, histories, live_through, node


@settings(max_examples=examples(100), deadline=None)
@given(histories())
def test_random_queues_place_whole_gangs_once_and_use_all_fitting_gpus(history):
    live_through(history)


@settings(max_examples=examples(100), deadline=None)
@given(
    big=st.sampled_from([Need(8), Need(6), Need(16, 2), Need(4)]),
    lengths=st.lists(st.integers(1, 7), min_size=20, max_size=20),
    projects=st.lists(st.sampled_from(["p", "q", "mine"]), min_size=20, max_size=20),
    before=st.integers(0, 20),
)
def test_an_endless_stream_of_small_runs_never_starves_a_large_one(big, lengths, projects, before):
    world = World([node("n0", 8), node("n1", 8)])
    durations: dict[str, int] = {}

    def small(number: int) -> None:
        run = Waiting(f"s{number}", number, Need(1), project=projects[number % 20])
        durations[run.run_id] = lengths[number % 20]
        world.submit(run)

    for number in range(before):
        small(number)
    durations["big"] = 3
    world.submit(Waiting("big", before, big, name="big", project="mine"))
    # What came before it may go first; then the longest small run has to end, once.
    bound = sum(lengths) + 2 * max(lengths) + before
    number = before + 1
    while "big" not in world.started_at and world.now <= bound:
        world.tick(durations)
        for _ in range(4):  # More each tick than can ever run at once.
            small(number)
            number += 1
    assert "big" in world.started_at


def test_many_equal_runs_need_no_more_reservations_than_gpus(monkeypatch):
    """Trials of a sweep: each tick considers all of them."""
    reserved = []
    reserve = GpuBoard.reserve
    monkeypatch.setattr(
        GpuBoard, "reserve", lambda board, run: reserved.append(run.run_id) or reserve(board, run)
    )
    waiting = [
        Waiting(f"r{n}", n, Need(1 if n % 3 else 4), name=f"r{n}", priority=n % 2)
        for n in range(10_000)
    ]
    held = [active("big", ("n0", tuple(range(8))))]
    decided = plan(waiting, held, [node("n0", 8)])
    assert len(decided.reasons) == 10_000
    assert len(reserved) <= 8 + 2 * 2  # Each GPU once; then each kind once a priority.
    counts = Counter(decided.reasons.values())
    assert len(counts) <= 8


@settings(max_examples=examples(100), deadline=None)
@given(histories(), st.integers(0, 20))
def test_cached_decision_for_equal_runs_matches_a_separate_one(history, now):
    """The cache per kind of run changes only the time of a plan, not its result."""
    nodes, arrivals = history
    nodes = [replace(one, usable=True) for one in nodes]
    runs = [replace(run, name=f"name of {run.run_id}") for _, run, _ in arrivals]
    running, waiting = [run for run in runs if run.number < now], []
    held = []
    for start in plan(running, [], nodes).starts:
        number = int(start.run_id[1:])
        held.append(active(start.run_id, remaining_s=60.0 * number, number=number))
        held[-1] = replace(held[-1], placement=start.placement)
    waiting = [run for run in runs if run.run_id not in {one.run_id for one in held}]
    each = [
        replace(run, excluded_nodes=run.excluded_nodes | {f"no node {run.number}"})
        for run in waiting
    ]
    found, alone = plan(waiting, held, nodes), plan(each, held, nodes)
    assert (found.starts, found.order) == (alone.starts, alone.order)
    assert found.reasons == alone.reasons


@settings(max_examples=examples(100), deadline=None)
@given(
    big=st.sampled_from([2, 4, 6, 8]),
    busy=st.lists(st.tuples(st.integers(0, 7), st.integers(1, 9)), max_size=8),
    small=st.lists(st.tuples(st.integers(1, 4), st.integers(1, 9)), max_size=12),
)
def test_backfill_starts_the_large_run_no_later_than_without_it(big, busy, small):
    """On one node: the same blockers, with and without small runs behind the large one."""

    def starts(behind: list[tuple[int, int]]) -> int:
        world = World([node("n0", 8)])
        durations = {"big": 1}
        for gpu, left in {gpu: left for gpu, left in busy}.items():  # noqa: C416 - later wins
            blocker = Waiting(f"b{gpu}", -1, Need(1))
            where = StartRun(blocker.run_id, (NodeShare("n0", (gpu,)),))
            world.running[blocker.run_id] = (blocker, where, left)
        world.submit(Waiting("big", 0, Need(big)))
        for number, (gpus, length) in enumerate(behind, 1):
            durations[f"s{number}"] = length
            world.submit(Waiting(f"s{number}", number, Need(gpus)))
        while "big" not in world.started_at:
            world.tick(durations)
            assert world.now < 100
        return world.started_at["big"]

    assert starts(small) == starts([])


@given(st.integers(1, 16), st.integers(2, 4), st.randoms(use_true_random=False))
def test_busy_projects_get_equal_numbers_of_gpus(gpus, projects, chance):
    """For any order of submission no project has two GPUs more than another."""
    names = [f"p{n}" for n in range(projects) for _ in range(gpus)]
    chance.shuffle(names)
    waiting = [Waiting(f"r{i}", i, Need(1), project=name) for i, name in enumerate(names)]
    started = {s.run_id for s in plan(waiting, [], [node("n0", gpus)]).starts}
    shares = Counter({f"p{n}": 0 for n in range(projects)})
    shares.update(run.project for run in waiting if run.run_id in started)
    assert sum(shares.values()) == gpus
    assert max(shares.values()) - min(shares.values()) <= 1


def test_later_runs_of_a_project_never_delay_its_earlier_one():
    held = [active("later", ("n0", (0, 1)), project="p", number=9)]
    runs = [Waiting("p-old", 1, Need(1), project="p"), Waiting("q-new", 2, Need(1), project="q")]
    decided = plan(runs, held, [node("n0", 3)])
    assert [start.run_id for start in decided.starts] == ["p-old"]


def test_runs_over_the_limit_of_their_sweep_neither_start_nor_reserve():
    held = [active("c0", ("n0", (0,)), sweep_id="s")]
    runs = [
        Waiting("c1", 1, Need(1), sweep_id="s", sweep_name="lr-grid", max_concurrent=2),
        Waiting("c2", 2, Need(1), sweep_id="s", sweep_name="lr-grid", max_concurrent=2),
        Waiting("other", 3, Need(6)),
    ]
    decided = plan(runs, held, [node("n0", 8)])
    assert [start.run_id for start in decided.starts] == ["c1", "other"]
    assert decided.reasons == {"c2": "waits for its sweep: lr-grid runs at most 2 at a time"}
    decided = plan(runs, held, [node("n0", 8)], exited={"c9": "s", "x": "another"})
    assert [start.run_id for start in decided.starts] == ["other"]


def test_large_run_starts_between_two_trials_of_a_limited_sweep():
    world = World([node("n0", 8)])
    for number in range(4):
        trial = Waiting(f"c{number}", number, Need(1), sweep_id="s", max_concurrent=1)
        world.submit(trial)
    lengths = {"big": 2, "later": 1, **{f"c{n}": 3 for n in range(4)}}
    world.tick(lengths)
    world.submit(Waiting("big", 4, Need(8)))
    for _ in range(4):
        world.tick(lengths)
    world.submit(Waiting("later", 5, Need(8)))
    for _ in range(12):
        world.tick(lengths)
    # The second trial queues from the end of the first one, so before what was submitted since.
    assert sorted(world.started_at, key=world.started_at.get) == [
        "c0", "big", "c1", "later", "c2", "c3",
    ]  # fmt: skip
    assert world.started_at["big"] == 3


def test_small_runs_are_packed_so_that_whole_nodes_stay_whole():
    held = [active("x", ("n1", (0, 1, 2)))]
    runs = [Waiting(f"r{i}", i, Need(1)) for i in range(5)]
    decided = plan([*runs, Waiting("big", 9, Need(8))], held, [node("n0", 8), node("n1", 8)])
    assert len(decided.starts) == 6
    assert decided.starts[5].placement == (NodeShare("n0", tuple(range(8))),)


def test_run_without_a_gpu_takes_a_cpu_slot_and_no_gpu():
    nodes = [node("n1", 1), node("n2", 2)]
    without = [Waiting(run_id=f"c{n}", number=n, need=Need(0)) for n in range(3)]
    gangs = [
        Waiting(run_id="g", number=9, need=Need(1)),
        Waiting(run_id="h", number=10, need=Need(2)),
    ]
    decided = plan([*without, *gangs], [], nodes)
    placed = {start.run_id: start.placement for start in decided.starts}
    assert {name: [share.gpus for share in found] for name, found in placed.items()} == {
        "c0": [()],
        "c1": [()],
        "g": [(0,)],
        "h": [(0, 1)],
    }
    assert {placed["c0"][0].node, placed["c1"][0].node} == {"n1", "n2"}
    assert decided.reasons == {"c2": "waits for a node's CPU (all 2 places are taken)"}
    later = plan([without[2]], [active("c0", ("n1", ())), active("c1", ("n2", ()))], nodes)
    assert later.reasons == {"c2": "waits for a node's CPU (all 2 places are taken)"}
    assert plan([without[2]], [active("c1", ("n2", ()))], nodes).starts[0].placement[0].node == "n1"


NODES = 20


def cluster() -> list[Node]:
    gpus = tuple(Gpu(index, "A100") for index in range(8))
    return [Node(f"n{number:02}", gpus) for number in range(NODES)]


def queue(runs: int) -> list[Waiting]:
    return [Waiting(f"r{number}", number + 100, Need(1)) for number in range(runs)]


@pytest.mark.parametrize("busy", [True, False])
def test_work_for_a_run_does_not_grow_with_the_cluster(
    monkeypatch: pytest.MonkeyPatch, busy: bool
) -> None:
    """A plan of 1,500 runs on 1,000 nodes would look at each GPU of the cluster for each run."""
    looked: Counter[str] = Counter()
    matching = GpuBoard.matching

    def counted(self: GpuBoard, node: Node, need: Need) -> tuple[int, ...]:
        looked[node.name] += 1
        return matching(self, node, need)

    monkeypatch.setattr(GpuBoard, "matching", counted)
    held = tuple(range(8))
    active = [Active(f"a{n}", (NodeShare(f"n{n:02}", held),), number=n) for n in range(NODES)]

    def work(runs: int) -> int:
        looked.clear()
        plan(queue(runs), active if busy else [], cluster())
        return looked.total()

    # One more run changes one node, whose GPUs are then looked at a few times.
    assert work(60) - work(30) <= 30 * 5


def test_changed_node_is_looked_at_again() -> None:
    board = GpuBoard({node.name: node for node in cluster()[:1]})
    node, need = board.nodes["n00"], Need(4)
    assert board.open(node, need) == list(range(8))
    board.take((NodeShare("n00", (0, 1)),))
    assert board.open(node, need) == [2, 3, 4, 5, 6, 7]
    waiting = Waiting("r", 1, Need(4))
    board.reserve(waiting)
    assert board.open(node, need) == [6, 7]
    assert board.open(node, need, held=True) == [2, 3, 4, 5, 6, 7]
    assert (
        board.reserve(Waiting("s", 2, Need(4))) != []
    )  # Two are free, two are taken in this plan.
    assert board.reserve(Waiting("t", 3, Need(4))) == []
