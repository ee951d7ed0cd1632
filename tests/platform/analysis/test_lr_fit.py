"""The best learning rate, judged from points whose answer is known."""

import math
from dataclasses import replace

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from lehr.analysis.lr_fit import COST, USED, fit_learning_rate, rates_below
from lehr.analysis.noise import Noise
from lehr.base.formats import scientific
from lehr_testing.properties import examples

GRID = [1e-4, 2e-4, 4e-4, 8e-4, 1.6e-3, 3.2e-3, 6.4e-3, 1.28e-2]


def bowl(lr, *, at, depth=3.0, width=0.2):
    return depth + width * math.log(lr / at) ** 2


@settings(max_examples=examples(20))
@given(
    at=st.floats(math.log(3e-4), math.log(4e-3)).map(math.exp),
    width=st.floats(0.01, 5.0),
    scale=st.sampled_from([1e-3, 1.0, 50.0]),
)
def test_best_rate_of_an_exact_parabola_is_recommended_and_inside_the_intervals(at, width, scale):
    fit = fit_learning_rate([(lr, scale * bowl(lr, at=at, width=width)) for lr in GRID])
    assert fit.recommended == pytest.approx(at, rel=0.1)
    assert fit.sure[0] < at < fit.sure[1]
    assert fit.sure[0] <= fit.likely[0] < fit.likely[1] <= fit.sure[1]
    assert fit.edge is None
    assert fit.best == min(GRID, key=lambda lr: abs(math.log(lr / at)))


def test_recommended_rate_is_never_outside_of_the_intervals():
    """As it was in this sweep of a real run: near 1.7e-2, and between 1.2e-2 and 1.6e-2."""
    rates = [3e-4, 1e-3, 3e-3, 5.5e-3, 1e-2, 1.7e-2, 3e-2]
    losses = [6.036, 5.470, 4.062, 3.324, 3.205, 3.196, 3.212]
    fit = fit_learning_rate(list(zip(rates, losses, strict=True)))
    assert fit.sure[0] <= fit.likely[0] <= fit.recommended <= fit.likely[1] <= fit.sure[1]


@pytest.mark.parametrize(("at", "edge"), [(1e-6, "low"), (1.0, "high")])
def test_a_minimum_beyond_the_grid_is_reported_as_an_edge(at, edge):
    fit = fit_learning_rate([(lr, bowl(lr, at=at)) for lr in GRID])
    assert fit.edge == edge
    assert (fit.recommended, fit.sure) == (None, None)
    [beyond] = fit.next_rates
    assert beyond < GRID[0] if edge == "low" else beyond > GRID[-1]
    assert "to try next" in fit.notes()[0]


@pytest.mark.parametrize(
    ("at", "side"), [(1e-5, "below"), (1.1e-4, "below"), (1.2e-2, "above"), (1e-1, "above")]
)
def test_best_at_an_edge_has_a_bound_on_the_other_side(at, side):
    fit = fit_learning_rate([(lr, bowl(lr, at=at)) for lr in GRID])
    assert (fit.sure, fit.curves, fit.side) == (None, None, side)
    assert fit.bound < at if side == "above" else fit.bound > at
    assert max(fit.bound / fit.best, fit.best / fit.bound) < 2.2
    [note] = [note for note in fit.notes() if f"is {side} " in note]
    assert "with 95 %" in note
    assert fit.range_note() == note


def test_diverged_rate_beyond_the_best_leaves_no_bound():
    fit = fit_learning_rate([(lr, bowl(lr, at=1.0)) for lr in GRID] + [(1.0, math.nan)])
    assert (fit.edge, fit.bound) == (None, None)
    assert fit.sure[0] < fit.sure[1] <= 1.0


def test_diverged_rate_bounds_the_best_and_is_excluded_from_the_fit():
    points = [(lr, bowl(lr, at=1.6e-3)) for lr in GRID[:6]] + [
        (GRID[6], math.nan),
        (GRID[7], math.inf),
    ]
    fit = fit_learning_rate(points)
    assert fit.diverged == (GRID[6], GRID[7])
    assert fit.edge is None
    assert fit.recommended == pytest.approx(1.6e-3, rel=0.1)
    assert fit.sure[1] < GRID[6]


@pytest.mark.parametrize("pruned", [[8e-3], [8e-3, 1.6e-2]])
def test_best_beside_pruned_rates_is_not_at_the_edge(pruned):
    fit = fit_learning_rate([(1e-3, 3.0), (2e-3, 2.8), (4e-3, 2.5)], pruned)
    assert (fit.best, fit.edge) == (4e-3, None)
    assert fit.sure[0] < fit.recommended < fit.sure[1] <= 8e-3
    assert all(rate < 8e-3 for rate in fit.next_rates)
    above = fit_learning_rate([(1e-3, 2.5), (2e-3, 2.8), (4e-3, 3.0)], [5e-4])
    assert (above.best, above.edge) == (1e-3, None)
    assert 5e-4 <= above.sure[0] < above.sure[1]


@pytest.mark.parametrize(
    ("points", "pruned", "edge", "proposed"),
    [
        pytest.param([(1e-3, 2.5), (2e-3, 2.8), (4e-3, 3.0)], [8e-3], "low", (5e-4,), id="above"),
        pytest.param([(1e-2, 2.8), (3e-2, 2.6), (1e-1, 2.4)], [1e20], "high", None, id="far away"),
        # One of its seeds has a value.
        pytest.param([(1e-3, 3.0), (2e-3, 2.8), (4e-3, 2.5)], [4e-3], "high", None, id="measured"),
        # Finite rates are four times apart, all rates twice.
        pytest.param([(1e-3, 2.5), (2e-3, math.nan), (4e-3, 3.0)], [], "low", (5e-4,), id="gap"),
        pytest.param([(1e-3, 3.0), (2e-3, 2.0)], [], "high", None, id="two rates"),
    ],
)
def test_best_at_an_edge_has_no_recommendation(points, pruned, edge, proposed):
    fit = fit_learning_rate(points, pruned)
    assert (fit.edge, fit.recommended) == (edge, None)
    assert proposed in (None, fit.next_rates)


def test_pruned_rate_changes_nothing_where_measured_rates_bracket_the_best():
    points = [(lr, bowl(lr, at=1.6e-3)) for lr in GRID]
    without, beside = fit_learning_rate(points), fit_learning_rate(points, [3e-3, 1e-1])
    assert (beside.sure, beside.recommended) == (without.sure, without.recommended)


def test_no_rate_is_proposed_at_a_pruned_one_or_beyond_it():
    losses = [3.20, 3.10, 3.00, 3.09, 3.04, 3.002, 3.10, 3.3]
    rates = [1e-4 * 4**n for n in range(8)]
    points = list(zip(rates, losses, strict=True))
    best, second = rates[2], rates[5]
    middle = math.sqrt(rates[4] * second)
    for pruned in (middle, 1.02 * middle, math.sqrt(rates[3] * rates[4])):
        found = fit_learning_rate(points, [pruned])
        assert found.best == best
        assert not any(rate > 0.95 * pruned for rate in found.next_rates)


@pytest.mark.parametrize(
    ("points", "proposed"),
    [
        pytest.param([(1e-3, 3.0), (2e-3, 2.5), (4e-3, math.nan)], (1.4e-3, 2.8e-3), id="two"),
        pytest.param([(1e-3, math.nan), (4e-3, 2.5), (8e-3, math.inf)], (2e-3, 5.7e-3), id="one"),
        # The rates are too close for another one between them.
        pytest.param([(1e-3, 3.0), (2e-3, 2.5), (2.2e-3, math.nan)], (1.4e-3,), id="close"),
    ],
)
def test_too_few_finite_losses_get_the_middles_of_the_gaps_around_the_best(points, proposed):
    fit = fit_learning_rate(points)
    assert (fit.edge, fit.sure, fit.next_rates) == (None, None, proposed)
    [note] = [note for note in fit.notes("lehr extend x") if "to try next" in note]
    assert note.startswith(
        "Fewer than three rates have a loss to compare, so there is no interval."
    )
    assert note.endswith(f"Add {'them' if len(proposed) > 1 else 'it'}: `lehr extend x`")


def test_lower_rates_are_proposed_if_all_diverged():
    assert rates_below([1e-3, 4e-3]) == (2.5e-4,)
    assert rates_below([1e-3, 1e-3]) == (5e-4,)
    assert rates_below([1e3, 3e3]) == (0.3,)  # no more than AdamW is known to bear
    assert rates_below([]) == ()


def test_one_rate_gets_its_half_and_its_double():
    fit = fit_learning_rate([(1e-3, 3.0)])
    assert (fit.edge, fit.next_rates) == (None, (5e-4, 2e-3))
    assert any("Learning rates to try next: 5.0e-4, 2.0e-3." in note for note in fit.notes())


def test_no_finite_value_gives_no_fit():
    assert fit_learning_rate([(1e-3, math.nan)]) is None
    assert fit_learning_rate([]) is None


def test_seeds_give_the_noise():
    points = []
    for lr in (1e-3, 2e-3, 4e-3):
        centre = 3.0 if lr < 3e-3 else 3.2
        points += [(lr, centre - 0.05), (lr, centre + 0.05)]
    fit = fit_learning_rate(points)
    assert fit.noise == pytest.approx(0.05 * math.sqrt(2))


def test_with_one_seed_the_notes_estimate_the_noise():
    points = [(lr, bowl(lr, at=1.1e-3)) for lr in GRID]
    [note] = [note for note in fit_learning_rate(points).notes() if "noise" in note]
    assert note.startswith("One seed for each rate: the noise between seeds is estimated as ")
    two = fit_learning_rate([*points, *((lr, loss + 0.01) for lr, loss in points)])
    assert not any("is estimated" in note for note in two.notes())


def test_a_range_of_rates_that_cost_little_is_named():
    fit = fit_learning_rate([(lr, bowl(lr, at=1.1e-3, width=0.01)) for lr in GRID])
    low, high = fit.cheap
    assert low < 1.1e-3 < high
    for lr in (low, high):
        assert bowl(lr, at=1.1e-3, width=0.01) - 3.0 == pytest.approx(COST, rel=0.3)
    assert "cost less than 0.01" in fit.cost_note()
    steep = fit_learning_rate([(lr, bowl(lr, at=1.1e-3, width=5)) for lr in GRID])
    assert steep.cheap is None
    assert "cost less" not in steep.cost_note()


def test_recommended_rate_that_may_cost_much_says_how_much():
    fit = fit_learning_rate([(1e-3, 3.3), (4e-3, 3.0), (1.6e-2, 3.4), (6.4e-2, 4.0)])
    assert fit.cheap is None
    assert fit.curves.cost >= COST
    assert fit.cost_note() == (
        f"The best rate is not known exactly. With {scientific(fit.recommended, 2)} the loss is "
        f"expected to end {fit.curves.cost:.2g} above the lowest."
    )
    assert fit.cost_note() in fit.notes()


def test_two_valleys_cannot_be_told_apart_and_what_to_run_next_is_plain():
    losses = [3.20, 3.10, 3.00, 3.09, 3.04, 3.002, 3.10, 3.3]
    rates = [1e-4 * 4**n for n in range(8)]
    fit = fit_learning_rate(zip(rates, losses, strict=True))
    assert fit.undecided
    assert "cannot be told apart with one seed each" in fit.range_note()
    assert fit.next_seeds or fit.next_rates
    assert not set(fit.next_rates) & set(rates)
    [note] = [note for note in fit.notes(hours=0.05) if "to try next" in note.lower()]
    assert f"({fit.trials} trials, about {0.05 * fit.trials:.2g} GPU-hours)" in note
    assert fit.cost_after < fit.curves.cost


@pytest.mark.parametrize(("rate", "said"), [(5.5e-3, True), (1.7e-2, False)])
def test_rate_outside_of_the_interval_is_proposed_with_its_reason(rate, said):
    losses = [6.019, 5.664, 4.629, 3.154, 2.966, 2.942, 3.160]
    fit = fit_learning_rate(zip([1e-4 * 10 ** (n / 2) for n in range(7)], losses, strict=True))
    fit = replace(fit, next_rates=(rate,), next_seeds=0, trials=1, cost_after=0.01)
    assert ("beside the 95 % interval" in fit.advice()) == said


def test_smooth_curve_needs_nothing_more():
    fit = fit_learning_rate([(lr, bowl(lr, at=1.1e-3, width=0.01)) for lr in GRID])
    assert (fit.next_rates, fit.next_seeds) == ((), 0)
    assert any(note.startswith("Nothing more to run") for note in fit.notes())


def test_noise_of_other_sweeps_counts():
    points = list(zip(GRID, [3.3, 3.2, 3.08, 3.02, 3.01, 3.06, 3.2, 3.3], strict=True))
    quiet, noisy = (
        fit_learning_rate(points, noise_elsewhere=Noise(deviation, 6, 3))
        for deviation in (0.002, 0.1)
    )
    assert noisy.sure[1] / noisy.sure[0] > 1.5 * quiet.sure[1] / quiet.sure[0]
    assert noisy.curves.noise[0] > quiet.curves.noise[1]


def test_equal_losses_have_no_interval():
    fit = fit_learning_rate([(lr, 3.0) for lr in GRID])
    assert (fit.recommended, fit.sure, fit.next_rates) == (None, None, ())
    assert fit.notes() == [
        "All losses are equal: the rate made no difference. Does the training use it?"
    ]


def test_rate_of_which_one_seed_diverged_is_not_recommended():
    points = [(lr, bowl(lr, at=3e-3) + 0.01 * seed) for lr in GRID for seed in range(3)]
    points = [
        (lr, math.nan if (lr, n % 3) == (3.2e-3, 1) else y) for n, (lr, y) in enumerate(points)
    ]
    fit = fit_learning_rate(points)
    assert fit.diverged == (3.2e-3,)
    assert fit.recommended <= 1.6e-3
    assert "Counts as diverged, because one of its seeds did: 3.2e-3." in fit.notes()


def test_more_seeds_narrow_the_interval():
    def width(seeds):
        points = [
            (lr, bowl(lr, at=1.1e-3, width=0.02) + 0.02 * (-1) ** seed)
            for lr in GRID
            for seed in range(seeds)
        ]
        low, high = fit_learning_rate(points).sure
        return high / low

    assert width(32) < width(2)


RATE = st.floats(1e-4, 1e-2) | st.sampled_from([1e-3, math.nextafter(1e-3, 1), 1e-300, 1e300])
LOSS = st.floats() | st.floats(1, 5) | st.sampled_from([math.nan, 1e-320, 1e308, -1e308, 3.0])


@settings(max_examples=examples(15), deadline=None)
@given(st.lists(st.tuples(RATE, LOSS), max_size=7))
@example([(0.001, 0.0), (0.0028, 1e-320), (1e300, 4.76), (0.0010000000000000002, 0.0)])
@example([(0.082, 1e-320), (1e-300, 3.0), (1e-300, -1e49), (0.0062, 0.0), (0.001, 1e49)])
@example([(2**-7, 0.0), (2**-7, 0.0), (2**-9, 0.0), (0.0025189805749643883, 0.0), (1e-300, 0.0)])
def test_any_trials_get_a_verdict(points):
    fit = fit_learning_rate(points)
    if fit is None:
        return
    assert all(0 < rate < math.inf for rate in fit.next_rates)
    assert all(fit.notes("command"))
    for both in (fit.likely, fit.sure, fit.cheap):
        assert both is None or 0 < both[0] <= both[1] < math.inf


def test_loss_beyond_all_bounds_counts_as_diverged():
    fit = fit_learning_rate([(1e-3, 3.0), (2e-3, 2.0), (4e-3, 3.0), (8e-3, 1e200), (8e-3, 1e300)])
    assert fit.diverged == (8e-3,)
    assert fit.recommended == pytest.approx(2e-3, rel=0.1)


def test_rates_that_differ_by_rounding_only_have_no_interval():
    nearby = math.nextafter(1e-3, 1)
    fit = fit_learning_rate([(1e-3, 3.0), (nearby, 2.0), (math.nextafter(nearby, 1), 3.0)])
    assert (fit.best, fit.recommended) == (nearby, None)


def test_rates_that_are_very_far_apart_are_judged_on_a_bounded_grid():
    fit = fit_learning_rate([(1e-30, 3.0), (1e-3, 2.0), (1e20, 3.0)])
    assert len(fit.curves.rates) == 150
    assert fit.sure[0] < 1e-3 < fit.sure[1]


def test_rate_that_is_not_finite_is_an_error():
    for rate in (0.0, -1.0, math.inf, math.nan):
        with pytest.raises(ValueError, match="is not positive and finite"):
            fit_learning_rate([(rate, 2.0)])


@pytest.mark.parametrize(
    ("points", "used", "proposed"),
    [
        ([(1e-3, 3.0), (1e-2, 2.0)], USED["adamw"], (0.1,)),
        ([(1e-2, 3.0), (1e-1, 2.0)], USED["adamw"], (0.3,)),
        ([(1e-2, 3.0), (3e-1, 2.0)], USED["adamw"], ()),
        ([(1e-4, 2.0), (1e-3, 3.0)], USED["adamw"], (2e-5,)),
        ([(1e-5, 2.0), (1e-4, 3.0)], USED["adamw"], ()),
        ([(1e-2, 2.0), (1e-1, 3.0)], USED["muon"], (1e-3,)),
        ([(1e-3, 3.0), (2e-3, math.nan), (4e-3, math.nan)], USED["adamw"], (5e-4,)),
        ([(1e-3, 2.0), (1e300, 1.0)], USED["adamw"], ()),
    ],
)
def test_rate_beyond_an_edge_is_one_step_further_within_those_in_use(points, used, proposed):
    assert fit_learning_rate(points, used=used).next_rates == proposed


def test_rate_that_diverged_far_away_does_not_move_the_best():
    found = fit_learning_rate([(1e-2, 2.7864), (3e-2, 2.4457), (1e-1, 2.4699), (1e20, math.nan)])
    assert 1e-2 < found.recommended < 1e-1
    assert found.sure[1] <= 0.2
    assert found.diverged == (1e20,)
    [note] = [note for note in found.notes() if "typing error" in note]
    assert note.startswith("Left out: 1.0e20, over 1,000 times away from the better rates.")
    top = fit_learning_rate([(1e-2, 2.8), (3e-2, 2.6), (1e-1, 2.4), (1e20, math.nan)])
    assert (top.edge, top.recommended) == ("high", None)
    assert all(rate < 10.0 for rate in top.next_rates)


@pytest.mark.parametrize("high", [9.0, 1e6])
def test_rate_far_away_with_a_finite_but_high_loss_counts_as_one_that_diverged(high):
    points = [(1e-3, 2.9), (3e-3, 2.8), (1e-2, 2.85)]
    found = fit_learning_rate([*points, (1e20, high)])
    assert found.sure == fit_learning_rate([*points, (1e20, math.nan)]).sure
    assert found.sure[1] <= 1e-2
    top = fit_learning_rate([(1e-3, 2.9), (3e-3, 2.8), (1e-2, 2.75), (1e20, high)])
    assert (top.edge, top.recommended) == ("high", None)
    assert max(top.next_rates) < 1.0


@pytest.mark.parametrize("wall", [0.02, 0.2, 3.0])
@pytest.mark.parametrize("pruned", [True, False])
def test_no_rate_is_recommended_between_the_last_loss_and_a_rate_without_one(wall, pruned):
    """A published sweep: the best trial, below its neighbours' curve, is the last with a loss."""
    points = [
        (6.905e-4, 3.0076168), (9.766e-4, 2.9942448), (1.381e-3, 2.9877752),
        (1.953e-3, 2.9558603), (2.762e-3, 2.9696952), (3.906e-3, 2.9248357),
    ]  # fmt: skip
    diverged = [] if pruned else [(wall, math.nan)]
    fit = fit_learning_rate([*points, *diverged], pruned=[wall] if pruned else [])
    assert fit.recommended <= 3.906e-3
    mirrored = fit_learning_rate(
        [(1 / rate, loss) for rate, loss in [*points, *diverged]],
        pruned=[1 / wall] if pruned else [],
    )
    assert mirrored.recommended >= 1 / 3.906e-3
