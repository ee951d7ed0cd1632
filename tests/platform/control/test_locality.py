"""Placement of runs that resume: where their checkpoints are."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from lehr.control.queue import plan
from lehr.control.queue_entries import (
    Active,
    Saved,
    Waiting,
    reach,
    resume_warning,
    separate_folders,
)
from lehr.control.resources import Need, NodeShare
from lehr_testing.properties import examples
from lehr_testing.queue_histories import A100, can_resume, checkpoints, clusters, needs, node


def apart(*names: str, gpus: int = 8) -> list:
    return [node(name, gpus, runs_folder=f"of-{name}") for name in names]


ONE = Need(1)


def resuming(saved: Saved | None, need: Need = ONE, run_id: str = "r") -> Waiting:
    return Waiting(run_id, 1, need, name=run_id, saved=saved)


def place(run: Waiting, nodes: list, *held: Active) -> str | None:
    decided = plan([run], held, nodes)
    return decided.starts[0].placement[0].node if decided.starts else None


def busy(name: str, gpus: int) -> Active:
    return Active("other", (NodeShare(name, tuple(range(gpus))),), name="other")


def test_requeued_run_goes_back_to_the_node_with_its_checkpoint():
    nodes = apart("n1", "n2", "n3")
    # Without a checkpoint, the fullest node that suffices is taken.
    assert place(resuming(None), nodes, busy("n3", 4)) == "n3"
    assert place(resuming(Saved(("n2", "n1"))), nodes, busy("n3", 4)) == "n2"
    assert place(resuming(Saved(("n2",)), Need(0)), nodes) == "n2"
    assert place(resuming(Saved(("n3",)), Need(0)), nodes) == "n3"


def test_run_waits_for_a_busy_node_if_only_it_has_the_checkpoint():
    nodes = apart("n1", "n2")
    run = resuming(Saved(("n2",)))
    decided = plan([run], [busy("n2", 8)], nodes)
    assert not decided.starts
    assert decided.reasons["r"] == (
        "waits for 1 GPU (all 8 are busy); next in line at priority 0; only node n2 has its "
        "checkpoint"
    )


@pytest.mark.parametrize("saved", [Saved(("n2",), copied=True), Saved(("gone",)), Saved(())])
def test_run_starts_elsewhere_if_a_copy_exists_or_the_place_is_unknown(saved):
    assert place(resuming(saved), apart("n1", "n2"), busy("n2", 8)) == "n1"


def test_nodes_that_share_the_folder_are_equally_near():
    shared = [node(name, 8, runs_folder="nfs") for name in ("n1", "n2")]
    run = resuming(Saved(("n1",)))
    assert place(run, [*shared, *apart("n3")], busy("n2", 4), busy("n3", 7)) == "n2"
    assert place(run, [*shared, *apart("n3")], busy("n1", 8), busy("n2", 8)) is None
    # The reason of a run that may go anywhere names no nodes.
    assert "checkpoint" not in plan([run], [busy("n1", 8), busy("n2", 8)], shared).reasons["r"]


def test_runs_with_checkpoints_elsewhere_do_not_share_a_decision():
    nodes = apart("n1", "n2")
    first, second = resuming(Saved(("n1",)), run_id="a"), resuming(Saved(("n2",)), run_id="b")
    [start] = plan([first, second], [busy("n1", 8)], nodes).starts
    assert start.run_id == "b"
    assert start.placement[0].node == "n2"


@settings(max_examples=examples(200), deadline=None)
@given(nodes=clusters, saved=checkpoints, need=needs, free=st.data())
def test_preference_costs_no_start_and_takes_a_near_node_whenever_one_fits(
    nodes, saved, need, free
):
    held = [busy(n.name, free.draw(st.integers(0, len(n.gpus)))) for n in nodes]
    start = place(resuming(saved, need), nodes, *held)
    possible = [n for n in nodes if can_resume(resuming(saved, need), n, nodes)]
    assert (start is None) == (place(resuming(None, need), possible, *held) is None)
    if start is None or saved is None:
        return
    near = reach(saved, {n.name: n for n in nodes}).near
    alone = [n for n in possible if n.name in near]
    if need.nodes == 1 and place(resuming(None, need), alone, *held) is not None:
        assert start in near


def test_nodes_that_share_the_folder_of_runs_are_told_from_others():
    pair = apart("n2", "n1")
    assert separate_folders(Need(1), pair) == ["n1", "n2"]
    assert separate_folders(Need(0), pair) == ["n1", "n2"]
    assert separate_folders(Need(9), pair) == []
    assert separate_folders(Need(8, 1, "A100"), pair) == []
    assert separate_folders(Need(8, 2), [*pair, node("a", 8, A100)]) == ["n1", "n2"]
    assert separate_folders(Need(1), pair[:1]) == []
    assert separate_folders(Need(1), [node(n, 8, runs_folder="nfs") for n in ("n1", "n2")]) == []
    # Nothing is claimed of nodes that are unknown or gone.
    assert separate_folders(Need(1), [pair[0], node("n3", 8)]) == []
    gone = node("n3", 8, usable=False, runs_folder="x")
    assert separate_folders(Need(1), [pair[0], gone]) == []


def test_warning_names_the_nodes_and_the_cure():
    assert resume_warning(["n1", "n2"]) == (
        "Its checkpoints stay on the node that writes them, because the nodes (n1, n2) do not share "
        "the folder of runs: if that node is lost, it cannot resume. Set checkpoints.upload, or put "
        "LEHR_RUNS on storage that all nodes share."
    )
