"""A misspelt GPU type is distinguished from an unknown one."""

from __future__ import annotations

import pytest

from lehr.control.resources import likely_meant

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
