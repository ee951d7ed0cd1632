"""Curves that agree with trials: on real sweeps, on high ground, by themselves the same."""

import itertools
import math
import runpy

import numpy as np
import pytest

from lehr.analysis.lr_posterior import CLIFF, RateResult, posterior
from lehr_testing.paths import TESTS

RATES = [1e-4 * 2**n for n in range(8)]


def trials(losses: list[float | None]) -> tuple[RateResult, ...]:
    return tuple(RateResult(rate, loss) for rate, loss in zip(RATES, losses, strict=True))


def valley(at: float = 1e-3) -> list[float | None]:
    return [3 + 0.02 * math.log2(rate / at) ** 2 for rate in RATES]


def test_on_published_sweeps_the_verdict_beats_the_best_trial_and_its_intervals_hold() -> None:
    """A model size on which nothing was tuned, every second rate."""
    bench = runpy.run_path(str(TESTS / "bench/lr_verdict.py"))
    cases = list(bench["thinned"](bench["real_curves"]()[536872960], 2))
    answers = [bench["verdict"](case.rates, case.losses) for case in cases]
    regret = np.mean([case.cost(one.rate) for case, one in zip(cases, answers, strict=True)])
    simple = np.mean(
        [case.cost(bench["best_trial"](case.rates, case.losses).rate) for case in cases]
    )
    assert regret < simple
    held = [
        [low / case.slack <= case.best <= high * case.slack for low, high in one.intervals]
        for case, one in zip(cases, answers, strict=True)
        if one.intervals
    ]
    likely, sure = np.mean(held, axis=0)
    assert likely >= 0.68
    assert sure >= 0.95


def test_height_of_high_ground_does_not_matter() -> None:
    low, high = valley(), valley()
    low[-1], high[-1] = 3 + 0.02 * CLIFF * 4, 3 + 1e6
    diverged = [*valley()[:-1], None]
    first, second, third = (posterior(trials(one), None) for one in (low, high, diverged))
    assert first.interval(0.95) == second.interval(0.95) == third.interval(0.95)
    # The curve ends where it diverged, so the best rate is below.
    assert third.rates[-1] == pytest.approx(RATES[-1])
    assert third.interval(0.95)[1] < RATES[-1]


def test_scale_and_offset_of_the_metric_do_not_matter() -> None:
    plain = posterior(trials(valley()), None)
    moved = posterior(trials([100 + 7 * loss for loss in valley() if loss is not None]), None)
    assert moved.interval(0.95) == pytest.approx(plain.interval(0.95), rel=1e-6)
    assert moved.risk == pytest.approx(7 * plain.risk, rel=1e-6)


def test_mean_curve_passes_near_the_trials() -> None:
    curves = posterior(trials(valley()), None)
    at = [int(np.abs(np.log(curves.rates / rate)).argmin()) for rate in RATES]
    assert curves.mean[at] == pytest.approx(np.array(valley()), abs=0.01)
    assert (curves.spread[at][1:-1] < 0.01).all()


def test_gap_around_the_best_rate_is_the_most_probable() -> None:
    curves = posterior(trials(valley()), None)
    parts = [curves.probability(low, high) for low, high in itertools.pairwise(RATES)]
    assert sum(parts) <= 1
    # 8e-4 to 1.6e-3.
    assert parts.index(max(parts)) == 3


def test_more_seeds_at_the_same_noise_narrow_the_interval() -> None:
    def width(seeds: int) -> float:
        given = tuple(
            RateResult(rate, loss, seeds) for rate, loss in zip(RATES, valley(), strict=True)
        )
        low, high = posterior(given, 0.06).interval(0.95)
        return high / low

    assert width(32) < 0.9 * width(2)


def test_two_finite_losses_tell_nothing() -> None:
    assert posterior(trials([3.0, 2.9, *[None] * 6]), None) is None
