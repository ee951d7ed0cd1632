"""Whether a run can ever be placed, and which GPUs have the type that it needs."""

from __future__ import annotations

import pytest

from lehr.control.resources import Need, can_ever_place, is_type, likely_meant
from lehr_testing.queue_histories import A100, H100, node


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
        f"needs 6 GPUs on each of 2 nodes; this cluster has 1 x L4, 4 x {A100}, "
        f"10 x {H100} on 4 nodes, at most 8 on one node"
    )
    pair = [node("n0", 6, A100), node("n1", 2, A100), node("n2", 8)]
    assert can_ever_place(Need(8, 2, "A100"), pair) == (
        f"needs 4 x A100 on each of 2 nodes; this cluster has 8 x {A100} and "
        f"8 x {H100} on 3 nodes, at most 6 on one node"
    )


HERE = ["logical GPU"]


@pytest.mark.parametrize(
    ("wanted", "meant"),
    [
        ("H1000", "H100"),
        ("V1000", "V100"),
        ("h10", "H100"),
        ("RTX409", "RTX 4090"),
        ("L40SS", "L40S"),
    ],
)
def test_misspelt_gpu_type_gets_a_suggestion(wanted, meant):
    assert likely_meant(wanted, HERE) == meant


@pytest.mark.parametrize(
    "wanted",
    ["H100", "a100 80gb", "RTX4090", "4090", "A30", "L40", "RTX 4080", "H20", "MI300X", "logical"],
)
def test_known_types_are_accepted_in_every_spelling(wanted):
    assert likely_meant(wanted, HERE) is None


@pytest.mark.parametrize("wanted", ["Rubin CPX", "NVIDIA H1000", "TPU", "V200", "RTX 4090 D"])
def test_unknown_type_that_may_be_new_is_accepted(wanted):
    assert likely_meant(wanted, HERE) is None


def test_the_inventory_matches_any_cluster():
    assert likely_meant("H1000", ["NVIDIA H1000 160GB"]) is None
