"""The best learning rate, judged from points whose answer is known."""

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lehr.analysis.lr_fit import fit_learning_rate

GRID = [1e-4, 2e-4, 4e-4, 8e-4, 1.6e-3, 3.2e-3, 6.4e-3, 1.28e-2]


def bowl(lr, *, at, depth=3.0, width=0.2):
    return depth + width * math.log(lr / at) ** 2


@given(
    at=st.floats(math.log(3e-4), math.log(4e-3)).map(math.exp),
    width=st.floats(0.01, 5.0),
)
def test_exact_parabola_gives_its_minimum(at, width):
    fit = fit_learning_rate([(lr, bowl(lr, at=at, width=width)) for lr in GRID])
    assert fit.minimum == pytest.approx(at, rel=1e-6)
    assert fit.edge is None
    assert fit.best == min(GRID, key=lambda lr: abs(math.log(lr / at)))


@pytest.mark.parametrize(("at", "edge"), [(1e-6, "low"), (1.0, "high")])
def test_a_minimum_beyond_the_grid_is_reported_as_an_edge(at, edge):
    fit = fit_learning_rate([(lr, bowl(lr, at=at)) for lr in GRID])
    assert fit.edge == edge
    assert fit.minimum is None
    assert len(fit.next_grid) == 3
    beyond = max(fit.next_grid) < GRID[0] if edge == "low" else min(fit.next_grid) > GRID[-1]
    assert beyond
    assert "to try next" in fit.notes()[0]


def test_diverged_rate_bounds_the_best_and_is_excluded_from_the_fit():
    points = [(lr, bowl(lr, at=1.6e-3)) for lr in GRID[:6]] + [
        (GRID[6], math.nan),
        (GRID[7], math.inf),
    ]
    fit = fit_learning_rate(points)
    assert fit.diverged == (GRID[6], GRID[7])
    assert fit.edge is None
    assert fit.minimum == pytest.approx(1.6e-3, rel=1e-6)


def test_no_finite_value_gives_no_fit():
    assert fit_learning_rate([(1e-3, math.nan)]) is None
    assert fit_learning_rate([]) is None


def test_seeds_give_the_noise_and_the_rates_equal_to_the_best():
    points = []
    for lr in (1e-3, 2e-3, 4e-3):
        centre = 3.0 if lr < 3e-3 else 4.0
        points += [(lr, centre - 0.05), (lr, centre + 0.05)]
    fit = fit_learning_rate(points)
    assert fit.noise == pytest.approx(0.05 * math.sqrt(2))
    assert fit.within_noise == (1e-3, 2e-3)


def test_a_learning_rate_that_is_not_positive_is_an_error():
    with pytest.raises(ValueError, match="not positive"):
        fit_learning_rate([(0.0, 1.0)])


def test_two_points_have_a_best_but_no_parabola():
    fit = fit_learning_rate([(1e-3, 3.0), (2e-3, 2.0)])
    assert (fit.best, fit.parabola, fit.edge) == (2e-3, None, "high")
