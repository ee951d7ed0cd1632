"""The queue: its invariants over random histories, and the reasons of pending runs."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace

from hypothesis import given, settings
from hypothesis import strategies as st

from lehr.control.gpu_board import GpuBoard
from lehr.control.queue import StartRun, plan
from lehr.control.queue_entries import Active, Waiting
from lehr.control.resources import Gpu, Need, Node, NodeShare, can_ever_place, is_type
from lehr_testing.properties import examples
from lehr_testing.queue_histories import A100, H100, World, histories, live_through, node


def active(run_id: str, *shares: tuple[str, tuple[int, ...]], **more) -> Active:
    return Active(
        run_id, tuple(NodeShare(name, gpus) for name, gpus in shares), name=run_id, **more
    )


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
    failed = {
        run.run_id
        for run in waiting
        if "failed this run twice" in found.reasons.get(run.run_id, "")
    }
    assert {run: why for run, why in found.reasons.items() if run not in failed} == {
        run: why for run, why in alone.reasons.items() if run not in failed
    }


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


# --- order ----------------------------------------------------------------------------------------


def test_higher_priority_goes_first_then_first_come_first_served():
    runs = [
        Waiting("early", 1, Need(1)),
        Waiting("late", 2, Need(1)),
        Waiting("urgent", 3, Need(1), priority=10),
    ]
    decided = plan(runs, [], [node("n0", 2)])
    assert [start.run_id for start in decided.starts] == ["urgent", "early"]
    assert decided.order == ("late",)


def test_projects_share_gpus_within_a_priority():
    many = [Waiting(f"m{i}", i, Need(1), project="many") for i in range(100)]
    one = Waiting("one", 100, Need(1), project="one")
    held = [active(f"h{i}", ("n0", (i,)), project="many", number=-1) for i in range(7)]
    decided = plan([*many, one], held, [node("n0", 8)])
    assert [start.run_id for start in decided.starts] == ["one"]


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


def test_slots_of_a_sweep_go_to_its_runs_in_queue_order():
    trials = [
        Waiting(f"c{n}", n, Need(1), priority=n // 3, sweep_id="s", max_concurrent=3)
        for n in range(5)
    ]
    decided = plan(trials, [], [node("n0", 8)])
    assert [start.run_id for start in decided.starts] == ["c3", "c4", "c0"]
    assert decided.order == ("c1", "c2")
    urgent = [*trials[:2], Waiting("c9", 9, Need(1), priority=1, sweep_id="s", max_concurrent=3)]
    held = [active(f"h{n}", ("n0", (n,)), sweep_id="s") for n in range(3)]
    assert plan(urgent, held, [node("n0", 8)]).order == ("c9", "c0", "c1")


def test_small_runs_are_packed_so_that_whole_nodes_stay_whole():
    held = [active("x", ("n1", (0, 1, 2)))]
    runs = [Waiting(f"r{i}", i, Need(1)) for i in range(5)]
    decided = plan([*runs, Waiting("big", 9, Need(8))], held, [node("n0", 8), node("n1", 8)])
    assert len(decided.starts) == 6
    assert decided.starts[5].placement == (NodeShare("n0", tuple(range(8))),)


# --- pending reasons -----------------------------------------------------------------------------


def test_reason_names_the_node_the_missing_gpus_and_the_expected_time():
    held = [
        active("big-run-k3", ("n2", (0, 1)), remaining_s=39.0 * 60),
        active("whole", ("n1", tuple(range(8))), remaining_s=90_000.0),
    ]
    decided = plan([Waiting("r", 1, Need(8, 1, "H100"))], held, [node("n1", 8), node("n2", 8)])
    assert decided.reasons["r"] == (
        "waits for 8 x H100 (node n2 has 6 free; big-run-k3 frees 2 in about 40 m); "
        "next in line at priority 0"
    )


def test_reason_distinguishes_busy_gpus_from_reserved_ones():
    held = [active("a", ("n0", (0, 1, 2)), remaining_s=130.0)]
    runs = [Waiting("big", 1, Need(4), name="big"), Waiting("small", 2, Need(1), name="small")]
    decided = plan(runs, held, [node("n0", 4)])
    assert not decided.starts
    assert decided.reasons["small"] == "waits for 1 GPU (1 is free, kept for big)"
    full = plan([Waiting("s", 1, Need(1))], held, [node("n0", 3)])
    assert full.reasons["s"] == (
        "waits for 1 GPU (all 3 are busy; a frees 1 in about 2 m); next in line at priority 0"
    )


def test_reservation_takes_the_gpus_that_are_free_soonest():
    ends = [1000.0, 900.0, 60.0, 120.0]
    held = [active(f"r{i}", ("n0", (i,)), remaining_s=left) for i, left in enumerate(ends)]
    decided = plan([Waiting("big", 1, Need(2))], held, [node("n0", 4)])
    assert decided.reasons["big"].startswith(
        "waits for 2 GPUs (all 4 are busy; r2 frees 1 in about 1 m)"
    )
    two = [
        active("slow", ("n0", (0, 1)), remaining_s=900.0),
        active("quick", ("n1", (0, 1)), remaining_s=300.0),
        active("unknown", ("n2", (0, 1))),
    ]
    nodes = [node("n0", 2), node("n1", 2), node("n2", 2)]
    decided = plan([Waiting("big", 1, Need(2))], two, nodes)
    assert decided.reasons["big"].startswith(
        "waits for 2 GPUs (all 6 are busy; quick frees 2 in about 5 m)"
    )


def test_reasons_show_names_and_ids_only_without_a_name():
    unnamed = Active("r-7", (NodeShare("n0", (0, 1, 2)),), remaining_s=60.0)
    runs = [Waiting("r-8", 1, Need(4), name="large"), Waiting("r-9", 2, Need(1), name="small")]
    reasons = plan(runs, [unnamed], [node("n0", 4)]).reasons
    assert "; r-7 frees 3 in about 1 m)" in reasons["r-8"]
    assert reasons["r-9"] == "waits for 1 GPU (1 is free, kept for large)"


def test_reasons_count_free_gpus_after_the_starts_of_the_plan():
    held = [active("x", ("n0", (0,)))]
    runs = [
        *(Waiting(name, n, Need(4), name=name) for n, name in enumerate(("a", "b"))),
        Waiting("one", 2, Need(1)),
        Waiting("c", 3, Need(4)),
    ]
    decided = plan(runs, held, [node("n0", 4), node("n1", 2)])
    assert [start.run_id for start in decided.starts] == ["one"]
    assert decided.reasons["b"] == "waits for 4 GPUs (5 are free, kept for a)"
    assert decided.reasons["c"] == "waits for 4 GPUs (4 are free, kept for a)"


def test_free_gpus_are_reserved_for_the_largest_run():
    held = [active("x", ("n0", (1, 2, 3))), active("y", ("n2", (0, 1, 2)))]
    runs = [
        *(Waiting(name, n, Need(4), name=name) for n, name in enumerate(("a", "b"))),
        Waiting("d", 2, Need(6, 2), name="d"),
        Waiting("e", 3, Need(4), name="e"),
    ]
    reasons = plan(runs, held, [node("n0", 4), node("n1", 3), node("n2", 3)]).reasons
    assert reasons["b"] == "waits for 4 GPUs (4 are free, kept for a)"
    assert reasons["e"] == "waits for 4 GPUs (4 are free, kept for d)"
    # GPUs that are reserved but busy keep nothing free.
    busy = [active("x", ("n0", tuple(range(1, 8))))]
    runs = [
        Waiting(name, n, Need(size), name=name)
        for n, (name, size) in enumerate((("a", 2), ("b", 6), ("c", 1)))
    ]
    assert plan(runs, busy, [node("n0", 8)]).reasons["c"] == (
        "waits for 1 GPU (1 is free, kept for a)"
    )


def test_only_the_first_of_its_priority_is_next_in_line():
    runs = [
        Waiting("all", 0, Need(8), priority=5),
        Waiting("first", 1, Need(4)),
        Waiting("second", 2, Need(4)),
    ]
    reasons = plan(runs, [active("x", ("n0", (0,)))], [node("n0", 8)]).reasons
    assert reasons["all"].endswith("; next in line at priority 5")
    assert reasons["first"].endswith("; next in line at priority 0")
    assert not reasons["second"].endswith("; next in line at priority 0")


def test_an_impossible_run_shows_the_inventory_and_blocks_no_other():
    logical = Node("n0", tuple(Gpu(i, "logical GPU") for i in range(8)))
    runs = [Waiting("a100", 1, Need(1, 1, "A100")), Waiting("any", 2, Need(8))]
    decided = plan(runs, [], [logical])
    assert [start.run_id for start in decided.starts] == ["any"]
    assert decided.reasons["a100"] == "needs 1 x A100; this cluster has 8 x logical GPU"


def test_reason_names_unreachable_and_excluded_nodes():
    nodes = [node("n0", 8, usable=False), node("n1", 8)]
    run = Waiting("r", 1, Need(8), excluded_nodes=frozenset({"n1"}))
    assert plan([run], [], nodes).reasons["r"] == (
        "waits for 8 GPUs (node n0 does not answer; node n1 failed this run twice and is excluded for it: "
        "lehr cluster readmit n1)"
    )


def test_gpu_types_match_by_whole_words():
    assert is_type(A100, "A100")
    assert is_type(A100, "a100 80gb")
    assert is_type("NVIDIA GeForce RTX 4090", "RTX4090")
    assert is_type("logical GPU", None)
    assert not is_type("NVIDIA H1000", "H100")
    assert not is_type(H100, "A100")
    # Spaces do not matter, parts of words do.
    assert is_type("NVIDIA RTX 4090", "nvidia rtx 4090")
    assert is_type("NVIDIA RTX 4090 Ti", "RTX 4090Ti")
    assert is_type("GH200", "GH200")
    assert not is_type("NVIDIA RTX 4090", "4090Ti")


def test_can_ever_place_returns_the_reason():
    nodes = [node("n0", 8), node("n1", 8)]
    assert can_ever_place(Need(16, 2), nodes) is None
    assert can_ever_place(Need(16), nodes) == (
        f"needs 16 GPUs on one node; this cluster has 16 x {H100}, at most 8 on one node"
    )
    assert can_ever_place(Need(32), nodes) == f"needs 32 GPUs; this cluster has 16 x {H100}"
    assert can_ever_place(Need(1), []) == "needs 1 GPU; this cluster has no GPUs"
    uneven = [node("n0", 2), node("n1", 8), node("n2", 4, A100)]
    assert can_ever_place(Need(9), uneven) == (
        f"needs 9 GPUs on one node; this cluster has 4 x {A100} and 10 x {H100}, "
        "at most 8 on one node"
    )
    three = [*uneven, node("n3", 1, "L4")]
    assert can_ever_place(Need(12, 2), three) == (
        f"needs 12 GPUs on 2 nodes, 6 x GPU on each; this cluster has 1 x L4, 4 x {A100}, "
        f"10 x {H100} on 4 nodes, at most 8 on one"
    )
    pair = [node("n0", 6, A100), node("n1", 2, A100), node("n2", 8)]
    assert can_ever_place(Need(8, 2, "A100"), pair) == (
        f"needs 8 x A100 on 2 nodes, 4 x A100 on each; this cluster has 8 x {A100} and "
        f"8 x {H100} on 3 nodes, at most 6 on one"
    )


def test_an_excluded_node_gets_no_runs_and_reasons_name_readmit():
    out = Node("n1", tuple(Gpu(i, H100) for i in range(8)), excluded=True)
    big = Waiting("big", 1, Need(8))
    assert plan([big], [], [out]).reasons["big"] == (
        "waits for 8 GPUs (node n1 is excluded: lehr cluster readmit n1)"
    )
    both = [node("n0", 8), out]
    assert [s.placement[0].node for s in plan([big], [], both).starts] == ["n0"]
    busy = [active("long", ("n0", tuple(range(8))))]
    assert plan([big], busy, both).reasons["big"] == (
        "waits for 8 GPUs (all 8 are busy; node n1 is excluded); next in line at priority 0"
    )


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


def test_runs_without_a_gpu_go_to_the_node_with_the_most_free_slots():
    nodes = [replace(node("n1", 1), cpu_places=4), replace(node("n2", 1), cpu_places=2)]
    held = [active("a", ("n1", ())), active("b", ("n1", ()))]
    run = Waiting("c", 1, Need(0))

    def goes_to(*before: Active) -> list[str]:
        return [start.placement[0].node for start in plan([run], before, nodes).starts]

    assert goes_to(held[0]) == ["n1"]
    assert goes_to(*held, active("d", ("n1", ()))) == ["n2"]
    full = [active(name, (name[:2], ())) for name in ("n1a", "n1b", "n1c", "n1d", "n2a", "n2b")]
    assert goes_to(*full) == []


def test_run_without_a_gpu_waits_if_no_node_is_usable():
    assert can_ever_place(Need(0), [node("n1", 1)]) is None
    why = "needs a node with GPUs, real or logical; there is none"
    assert can_ever_place(Need(0), []) == why
    assert can_ever_place(Need(0), [node("head", 0)]) == why
    silent = plan([Waiting(run_id="c", number=1, need=Need(0))], [], [node("n1", 1, usable=False)])
    assert silent.reasons["c"].startswith("waits for a node's CPU")
