"""The settings that explain trials of a learning rate."""

from __future__ import annotations

import numpy as np
import pytest

from lehr.analysis import lr_shapes


def test_kinks_lie_between_the_neighbours_of_the_best_rate() -> None:
    x, y = np.array([0.0, 1.0, 3.0, 4.0, 6.0]), np.array([3.0, 1.0, 0.0, 2.0, 5.0])
    kinks = [shape.kink for shape in lr_shapes.shapes(x, y) if shape.kink is not None]
    assert min(kinks) > 1.0
    assert max(kinks) < 4.0


def test_curve_with_a_kink_has_another_slope_on_each_side() -> None:
    terms = lr_shapes.features(np.array([-2.0, -1.0, 0.0, 1.0, 2.0]), 0.0, 0.0)
    # Of level, the two slopes and the two curvatures.
    assert [row.any() for row in terms[:, :2]] == [True, True, False, True, False]
    assert [row.any() for row in terms[:, 3:]] == [True, False, True, False, True]


@pytest.mark.parametrize("kernel", ["five halves", "one half"])
def test_covariance_falls_with_the_distance(kernel: str) -> None:
    values = lr_shapes.matern(np.array([0.0, 0.5, 1.0, 3.0]), kernel)
    assert values[0] == pytest.approx(1.0)
    assert (np.diff(values) < 0).all()


def test_measured_noise_is_the_only_one_that_seeds_reduce() -> None:
    assert {deviation for _, deviation in lr_shapes.noise_levels(None)} == {0.0}
    measured = lr_shapes.noise_levels(0.3)
    assert {noise for noise, _ in measured} == {0.3}
    assert max(deviation for _, deviation in measured) > 0
