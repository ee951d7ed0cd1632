"""Means of curves: where runs have no value, between points, and who dropped out."""

from __future__ import annotations

import math
from dataclasses import dataclass

import pytest
from hypothesis import given
from hypothesis import strategies as some

from lehr.analysis.mean_curves import dropouts, mean_curve

NAN = math.nan


@dataclass
class Curve:
    step: list[int]
    y: list[float]

    @property
    def x(self) -> list[float]:
        return [10.0 * step for step in self.step]


def test_the_mean_has_one_standard_deviation_on_both_sides():
    mean = mean_curve([Curve([1, 2], [2, 4]), Curve([1, 2], [4, 4])])
    assert (mean.step, mean.x, mean.y, mean.counts) == ([1, 2], [10, 20], [3, 4], [2, 2])
    assert mean.low == pytest.approx([3 - math.sqrt(2), 4])
    assert mean.high == pytest.approx([3 + math.sqrt(2), 4])


@pytest.mark.parametrize(
    ("curves", "steps", "means", "counts"),
    [
        # One begins late, one ends early.
        (([1, 2, 3], [1, 1, 1], [2, 3, 4], [3, 3, 3]), [1, 2, 3, 4], [1, 2, 2, 3], [1, 2, 2, 1]),
        # A coarser one counts with what is between its points: no stairs.
        (([1, 2, 3, 4], [1, 1, 1, 1], [1, 4], [3, 6]), [1, 2, 3, 4], [2, 2.5, 3, 3.5], [2] * 4),
        # What is not finite has no part, and a step that nobody has is left out.
        (([1, 2, 3], [5, NAN, math.inf], [1, 2], [3, 3]), [1, 2], [4, 3], [2, 1]),
    ],
)
def test_those_that_have_a_value_make_the_mean(curves, steps, means, counts):
    mean = mean_curve([Curve(*curves[:2]), Curve(*curves[2:])])
    assert (mean.step, mean.y, mean.counts) == (steps, means, counts)
    assert mean.x == [10 * step for step in steps]


VALUES = some.lists(some.floats(-1e6, 1e6), min_size=1, max_size=20)


@given(VALUES, VALUES)
def test_no_mean_leaves_the_range_of_its_curves(a: list[float], b: list[float]):
    one, other = Curve([*range(len(a))], a), Curve([*range(len(b))], b)
    assert mean_curve([one, one]).y == pytest.approx(a)
    mean = mean_curve([one, other])
    assert len(mean.step) == max(len(a), len(b))
    assert mean.counts.count(2) == min(len(a), len(b))
    assert all(min(a + b) - 1e-6 <= y <= max(a + b) + 1e-6 for y in mean.y)


def test_words_say_who_diverged_or_ended_before_the_others():
    curves = [
        Curve([1, 900], [1, 1]),
        Curve([1, 60], [1, NAN]),
        Curve([1, 61, 900], [1, math.inf, NAN]),
        Curve([1, 400], [1, 1]),
        Curve([1, 850], [1, 1]),
    ]
    said = dropouts(curves, [False, True, True, True, False])
    assert said == "2 diverged at steps 60 to 61, 1 ended at step 400"
    assert dropouts(curves[:1], [True]) == ""
