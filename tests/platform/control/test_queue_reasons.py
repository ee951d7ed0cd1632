"""The reasons that the queue gives for pending runs."""

from __future__ import annotations

from dataclasses import replace

import pytest

from lehr.control.pending_reasons import about, cpu_places, no_usable_node, waits
from lehr.control.queue import plan
from lehr.control.queue_entries import Waiting
from lehr.control.resources import Gpu, Need, Node
from lehr_testing.queue_histories import H100, active, node


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


def test_an_impossible_run_shows_the_inventory_and_blocks_no_other():
    logical = Node("n0", tuple(Gpu(i, "logical GPU") for i in range(8)))
    runs = [Waiting("a100", 1, Need(1, 1, "A100")), Waiting("any", 2, Need(8))]
    decided = plan(runs, [], [logical])
    assert [start.run_id for start in decided.starts] == ["any"]
    assert decided.reasons["a100"] == "needs 1 x A100; this cluster has 8 x logical GPU"


def test_node_that_failed_a_run_twice_is_used_only_if_no_other_can_hold_it():
    run = Waiting("r", 1, Need(8), excluded_nodes=frozenset({"n1"}))
    [start] = plan([run], [], [node("n0", 8), node("n1", 8)]).starts
    assert [share.node for share in start.placement] == ["n0"]
    assert start.message == "not on node n1, which failed it twice"
    # A smaller node is no other place for it, and one that does not answer is none now.
    for other in (node("n0", 4), node("n0", 8, usable=False)):
        [start] = plan([run], [], [other, node("n1", 8)]).starts
        assert [share.node for share in start.placement] == ["n1"]
        assert start.message == "node n1 failed it twice, but no others can hold it"
    busy = plan([run], [active("a", ("n0", tuple(range(8))))], [node("n0", 8), node("n1", 8)])
    assert busy.starts == ()
    assert busy.reasons["r"] == (
        "waits for 8 GPUs (all 8 are busy); next in line at priority 0; not on node n1, which "
        "failed it twice"
    )


def test_reason_names_a_node_that_has_not_come_back():
    gpus = tuple(Gpu(i, H100) for i in range(8))
    away = Node("n1", gpus, usable=False, away="has not come back")
    gang = Waiting("gang", 1, Need(16, 2))
    silent = node("n2", 8, usable=False)
    assert plan([gang], [], [node("n0", 8), silent, away]).reasons["gang"] == (
        "waits for 16 GPUs on 2 nodes (node n1 has not come back; node n2 does not answer)"
    )
    small = Waiting("small", 1, Need(8, gpu_type="A100"))
    a100 = Node("n3", (Gpu(0, "A100"),) * 8)
    assert "n1" not in plan([small], [], [replace(a100, usable=False), away]).reasons["small"]


def test_an_excluded_node_gets_no_runs_and_reasons_name_readmit():
    out = Node("n1", tuple(Gpu(i, H100) for i in range(8)), excluded=True)
    big = Waiting("big", 1, Need(8))
    assert plan([big], [], [out]).reasons["big"] == (
        "waits for 8 GPUs (node n1 is excluded: lehr node readmit n1)"
    )
    both = [node("n0", 8), out]
    assert [s.placement[0].node for s in plan([big], [], both).starts] == ["n0"]
    busy = [active("long", ("n0", tuple(range(8))))]
    assert plan([big], busy, both).reasons["big"] == (
        "waits for 8 GPUs (all 8 are busy; node n1 is excluded); next in line at priority 0"
    )


def test_reason_names_a_node_that_has_left_and_how_it_comes_back():
    gone = Node("n1", tuple(Gpu(i, H100) for i in range(8)), usable=False, excluded=True, left=True)
    gang = Waiting("gang", 1, Need(16, 2))
    assert plan([gang], [], [node("n0", 8), gone]).reasons["gang"] == (
        "waits for 16 GPUs on 2 nodes (node n1 has left: lehr node join on n1)"
    )
    small = Waiting("small", 1, Need(8))
    busy = [active("long", ("n0", tuple(range(8))))]
    assert plan([small], busy, [node("n0", 8), gone]).reasons["small"] == (
        "waits for 8 GPUs (all 8 are busy); next in line at priority 0"
    )


@pytest.mark.parametrize(
    ("seconds", "text"),
    [
        (0, "less than 1 m"),
        (59, "less than 1 m"),
        (60, "about 1 m"),
        (8 * 60, "about 10 m"),
        (55 * 60, "about 50 m"),
        (56 * 60, "about 1 h"),
        (10 * 3600, "about 10 h"),
        (47.9 * 3600, "about 48 h"),
        (48 * 3600, "about 2 d"),
        (75 * 3600, "about 3 d"),
    ],
)
def test_duration_is_rounded_to_its_precision(seconds, text):
    assert about(seconds) == text


def test_singular_and_plural_are_used_correctly():
    assert cpu_places(1) == "waits for a node's CPU (the only place is taken)"
    assert cpu_places(2) == "waits for a node's CPU (all 2 places are taken)"
    busy = {"keeper": None, "next_at": None}
    assert waits(Need(1), [], free=0, total=1, **busy) == "waits for 1 GPU (the only one is busy)"
    assert waits(Need(1), [], free=0, total=2, **busy) == "waits for 1 GPU (all 2 are busy)"
    kept = waits(Need(4), [], free=2, total=8, keeper="big", next_at=None, out=["n1", "n2"])
    assert kept == "waits for 4 GPUs (2 are free, kept for big; nodes n1, n2 are excluded)"


def test_unusable_nodes_are_named_with_the_remedy():
    assert no_usable_node(Need(1), ["n1", "n2"], ["n5", "n6"]) == (
        "waits for 1 GPU (nodes n1, n2 do not answer; "
        "nodes n5, n6 are excluded: lehr node readmit n5)"
    )
    assert no_usable_node(Need(1), [], []) == "waits for 1 GPU"
