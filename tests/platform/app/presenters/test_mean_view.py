"""Means of curves: where runs have no value, between points, and who dropped out."""

from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as some

from lehr.app.presenters.series import mean_view
from lehr.schemas.streams import Series
from lehr.store.streams.series_query import SeriesData

NAN = math.nan


def curve(step: list[int], y: list[float], run: str = "r") -> SeriesData:
    x = [10.0 * one for one in step]
    return SeriesData(run, "loss", "step", True, len(step), step, x, y, None, None, [])


def mean_curve(curves: list[SeriesData]) -> Series:
    return mean_view(curves, [False] * len(curves), 12, {})


def test_the_mean_has_one_standard_deviation_on_both_sides():
    mean = mean_curve([curve([1, 2], [2, 4]), curve([1, 2], [4, 4])])
    assert (mean.step, mean.x, mean.y, mean.members) == ([1, 2], [10, 20], [3, 4], 2)
    assert mean.counts is None, "all have a value at all"
    assert mean.low == pytest.approx([3 - math.sqrt(2), 4])
    assert mean.high == pytest.approx([3 + math.sqrt(2), 4])


@pytest.mark.parametrize(
    ("curves", "steps", "means", "counts"),
    [
        # One begins late, one ends early.
        (([1, 2, 3], [1, 1, 1], [2, 3, 4], [3, 3, 3]), [1, 2, 3, 4], [1, 2, 2, 3], [1, 2, 2, 1]),
        # A coarser one counts with what is between its points: no stairs.
        (([1, 2, 3, 4], [1, 1, 1, 1], [1, 4], [3, 6]), [1, 2, 3, 4], [2, 2.5, 3, 3.5], None),
        # What is not finite has no part, and a step that nobody has is left out.
        (([1, 2, 3], [5, NAN, math.inf], [1, 2], [3, 3]), [1, 2], [4, 3], [2, 1]),
    ],
)
def test_those_that_have_a_value_make_the_mean(curves, steps, means, counts):
    mean = mean_curve([curve(*curves[:2]), curve(*curves[2:])])
    assert (mean.step, mean.y, mean.counts) == (steps, means, counts)
    assert mean.x == [10 * step for step in steps]


def test_the_mean_ends_where_less_than_half_of_its_members_have_a_value():
    curves = [curve([1, 2, 3, 4], [1, 2, 3, 4]), *[curve([2, 3], [2, 6])] * 2, curve([3], [9])]
    mean = mean_curve(curves)
    assert (mean.step, mean.y, mean.counts) == ([2, 3], [2, 6], [3, 4])


def test_runs_that_diverged_are_no_members_unless_all_did():
    curves = [curve([1, 2, 3], [1, 1, 1], "a"), curve([1, 2, 3], [9, 9, NAN], "b")]
    mean = mean_view(curves, [True, True], 12, {}, {"b"})
    assert (mean.y, mean.members, mean.dropouts) == ([1, 1, 1], 1, "1 diverged at step 3")
    assert mean_view(curves[1:] * 2, [True, True], 12, {}, {"b"}).y == [9, 9]


VALUES = some.lists(some.floats(-1e6, 1e6), min_size=1, max_size=20)


@given(VALUES, VALUES)
def test_no_mean_leaves_the_range_of_its_curves(a: list[float], b: list[float]):
    one, other = curve([*range(len(a))], a), curve([*range(len(b))], b)
    assert mean_curve([one, one]).y == pytest.approx(a)
    mean = mean_curve([one, other])
    assert len(mean.step) == max(len(a), len(b)), "of two, one is half"
    assert (mean.counts or [2] * len(a)).count(2) == min(len(a), len(b))
    assert all(min(a + b) - 1e-6 <= y <= max(a + b) + 1e-6 for y in mean.y)


def test_words_say_who_diverged_or_ended_before_the_others():
    curves = [
        curve([1, 900], [1, 1]),
        curve([1, 60], [1, NAN]),
        curve([1, 61, 900], [1, math.inf, NAN]),
        curve([1, 400], [1, 1]),
        curve([1, 850], [1, 1]),
    ]
    said = mean_view(curves, [False, True, True, True, False], None, {}).dropouts
    assert said == "2 diverged at steps 60 to 61, 1 ended at step 400"
    assert mean_view(curves[:1], [True], None, {}).dropouts == ""
