"""Runs are grouped by paths of their configs, metrics, tags and project."""

import json
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lehr.analysis.groups import GroupedRun, bin_name, edges, group_names

CASES = json.loads((Path(__file__).parents[2] / "data" / "metric_bins.json").read_text())
RUNS = [
    GroupedRun(
        f"r{n}",
        {"train.optimizer.lr": lr, "train.model": "tiny", "train.seed": n, "data.lr": 1},
        project,
        tags,
        {"val/loss": loss},
    )
    for n, (lr, project, tags, loss) in enumerate(
        [(1e-3, "a", ["x", "b"], 2.0), (1e-3, "a", [], 2.5), (3e-3, "b", ["x"], 3.25)]
    )
]


@pytest.mark.parametrize("case", CASES, ids=[case["case"] for case in CASES])
def test_values_of_a_metric_are_in_parts_or_groups_of_their_own(case):
    values = [None if value is None else float(value) for value in case["values"]]
    at = edges(value for value in values if value is not None)
    assert [bin_name("m", value, at) for value in values] == case["names"]


@given(st.lists(st.floats(allow_nan=False, allow_infinity=False), min_size=2, max_size=40))
def test_parts_hold_equally_many_distinct_values_and_are_in_order(values):
    at = edges(values)
    if at is None:
        assert all(value.is_integer() for value in values)
        return
    assert at == sorted(set(at))
    assert len(at) <= 3
    parts = [sum(edge <= value for edge in at) for value in sorted(values)]
    assert set(parts) == set(range(len(at) + 1))
    if len(set(values)) == len(values):
        sizes = [parts.count(part) for part in set(parts)]
        assert max(sizes) - min(sizes) <= 1


def test_keys_are_paths_or_their_ends_tags_and_the_project():
    assert group_names(RUNS, "train.optimizer.lr") == ["lr 1.0e-3", "lr 1.0e-3", "lr 3.0e-3"]
    assert group_names(RUNS, "optimizer.LR") == group_names(RUNS, "train.optimizer.lr")
    # The shortest of several paths that end alike, as the filter of the dashboard takes it.
    assert group_names(RUNS, "lr") == ["lr 1"] * 3
    assert group_names(RUNS, "tag") == ["b, x", "no tag", "x"]
    assert group_names(RUNS, "tag:x") == ["x", "not x", "x"]
    assert group_names(RUNS, "project, seed") == ["a · seed 0", "a · seed 1", "b · seed 2"]


def test_a_metric_is_divided_into_equal_parts_or_at_a_named_value():
    assert group_names(RUNS, "val/loss") == [
        "val/loss below 2.3",
        "val/loss from 2.3",
        "val/loss from 2.3",
    ]
    assert group_names(RUNS, "val/loss<3") == ["val/loss below 3"] * 2 + ["val/loss from 3"]
    assert group_names(RUNS, "tag:x,val/loss<3")[1] == "not x · val/loss below 3"
