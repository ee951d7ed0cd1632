"""Curves that agree with trials: on real sweeps, on high ground, by themselves the same."""

import itertools
import math
import runpy
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np
import pytest
from threadpoolctl import threadpool_info

from lehr.analysis import lr_posterior
from lehr.analysis.lr_fit import COST
from lehr.analysis.lr_posterior import CLIFF, RateResult, posterior
from lehr_testing.paths import TESTS

RATES = [1e-4 * 2**n for n in range(8)]


def trials(losses: list[float | None]) -> tuple[RateResult, ...]:
    return tuple(RateResult(rate, loss) for rate, loss in zip(RATES, losses, strict=True))


def valley(at: float = 1e-3) -> list[float | None]:
    return [3 + 0.02 * math.log2(rate / at) ** 2 for rate in RATES]


@pytest.fixture(scope="module")
def bench() -> dict[str, Any]:
    return runpy.run_path(str(TESTS / "bench/lr_verdict.py"))


@pytest.mark.parametrize("size", [268304384, pytest.param(536872960, marks=pytest.mark.nightly)])
def test_on_published_sweeps_the_verdict_beats_simple_rules_and_its_intervals_hold(
    bench: dict[str, Any], size: int
) -> None:
    """Model sizes on which nothing was tuned, every second rate."""
    cases = list(bench["thinned"](bench["real_curves"]()[size], 2))
    answers = [bench["verdict"](case) for case in cases]
    regret = np.mean([case.cost(one.rate) for case, one in zip(cases, answers, strict=True)])
    for simple in ("best_trial", "three_points"):
        assert regret < np.mean([case.cost(bench[simple](case).rate) for case in cases])
    for case, one in zip(cases, answers, strict=True):
        above = case.cost(one.rate) - case.cost(bench["best_trial"](case).rate)
        assert above < max(COST, one.cost)
    held = [
        [low / case.slack <= case.best <= high * case.slack for low, high in one.intervals]
        for case, one in zip(cases, answers, strict=True)
        if one.intervals
    ]
    likely, sure = np.mean(held, axis=0)
    assert likely >= 0.68
    assert sure >= 0.95
    assert len(held) > 0.9 * len(cases)


@pytest.mark.nightly  # It takes seconds; the others here have one seed of each rate.
@pytest.mark.parametrize("family", ["skewed", "plateau"])
def test_with_seeds_the_interval_still_holds_where_the_shape_is_unknown(
    bench: dict[str, Any], family: str
) -> None:
    """More seeds tell the noise. They do not tell how far the curve is from those of the model."""
    cases = list(bench["synthetic"](family, 1, seeds=3))
    answers = [bench["verdict"](case) for case in cases]
    held = [
        one.intervals[0][0] <= case.best <= one.intervals[0][1]
        for case, one in zip(cases, answers, strict=True)
    ]
    assert np.mean(held) >= 0.68


def test_on_published_sweeps_without_an_interval_the_bound_holds(bench: dict[str, Any]) -> None:
    """Every fourth rate of the largest model: a third of the sweeps have their best at an edge."""
    cases = [
        case
        for case in bench["thinned"](bench["real_curves"]()[536872960], 4)
        if case.losses.argmin() in {0, len(case.losses) - 1}
    ]
    beyond = [bench["verdict"](case).beyond for case in cases]
    assert len(beyond) == 32
    assert None not in beyond
    held = [low <= case.best <= high for case, (low, high) in zip(cases, beyond, strict=True)]
    assert np.mean(held) >= 0.95


def test_pruned_half_of_a_sweep_brackets_the_best(bench: dict[str, Any]) -> None:
    cases = list(bench["thinned"](bench["real_curves"]()[536872960], 2))[::6]
    without = [bench["verdict"](bench["half"](case)) for case in cases]
    answers = [bench["verdict"](bench["pruned_half"](case)) for case in cases]
    assert sum(bool(one.intervals) for one in answers) > sum(bool(one.intervals) for one in without)
    for case, one in zip(cases, answers, strict=True):
        for low, high in one.intervals[1:]:
            assert low / case.slack <= case.best <= high * case.slack


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


@pytest.mark.parametrize(("left", "right", "at"), [(1, 3, 3.8), (1, 4, 3.75), (1, 4, 3.8)])
def test_interval_holds_a_best_rate_at_which_the_slope_jumps(
    left: int, right: int, at: float
) -> None:
    losses = [3 + 0.02 * (left * max(at - n, 0) + right * max(n - at, 0)) for n in range(8)]
    curves = posterior(trials([*losses]), None)
    low, high = curves.interval(0.68)
    assert low <= 1e-4 * 2**at <= high
    assert high / low < 1.5


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


def test_curves_are_computed_once_for_all_that_ask_and_on_one_thread(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """With more threads, matrices this small take several times as long where others compute."""
    threads = []

    def counted(*given: Any, **named: Any) -> Any:
        pools = threadpool_info()
        threads.append([pool["num_threads"] for pool in pools if pool["user_api"] == "blas"])
        return curves(*given, **named)

    curves = lr_posterior._curves
    monkeypatch.setattr(lr_posterior, "_curves", counted)
    given = trials(valley(at=1.2345e-3))
    with ThreadPoolExecutor(4) as pool:
        found = list(pool.map(lambda _: posterior(given, None), range(4)))
    assert all(one is found[0] for one in found)
    assert len(threads) == 1
    assert set(threads[0]) == {1}
