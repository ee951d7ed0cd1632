"""The share of each parameter of a sweep in what decides its metric."""

from __future__ import annotations

import math
from itertools import product

import pytest

from lehr.analysis.sweep_result import ENOUGH, parameter_importance
from lehr.schemas.sweeps import SweepDetail

from .test_sweep_figure import LR, sweep, trial

DECAY, NAME, SEED = "train.optimizer.weight_decay", "train.optimizer.name", "train.seed"


def grid(rates: int = 5) -> SweepDetail:
    """The rate decides nearly all, the weight decay and the seed nothing."""
    places = [
        (10 ** (-4 + rate / 2), decay, name, seed)
        for rate in range(rates)
        for decay in (0.0, 0.1)
        for name in ("adamw", "muon")
        for seed in (0, 1)
    ]
    return sweep(
        [
            trial(
                n,
                3 + math.log10(lr / 1e-3) ** 2 + (0.2 if name == "muon" else 0.0) + seed / 1000,
                parameters={LR: lr, DECAY: decay, NAME: name, SEED: seed},
            )
            for n, (lr, decay, name, seed) in enumerate(places)
        ]
    )


def test_the_parameter_that_decides_has_the_largest_share():
    found = parameter_importance(grid())
    assert next(iter(found)) == LR
    assert set(found) == {LR, DECAY, NAME}
    assert found[DECAY] < 0.1 < found[LR]
    assert sum(found.values()) == pytest.approx(1)


@pytest.mark.parametrize("goal", ["minimize", "maximize"])
@pytest.mark.parametrize("decays", [(0.0, 0.3), (0.0, 0.1, 0.3)])
def test_a_parameter_without_effect_has_next_to_none_in_a_small_grid(decays, goal) -> None:
    rates = [1e-3, 3e-3, 1e-2, 3e-2, 1e-1]
    losses = [3.291, 2.612, 2.510, 2.608, 2.766]  # As measured; the decay changes the third digit.
    trials = [
        trial(n, loss + decay / 100, parameters={DECAY: decay, LR: lr})
        for n, (decay, (lr, loss)) in enumerate(product(decays, zip(rates, losses, strict=True)))
    ]
    made = sweep(trials)
    if goal == "maximize":
        turned = [one.model_copy(update={"compared_value": -one.compared_value}) for one in trials]
        made = made.model_copy(update={"trials": turned, "goal": "maximize"})
    assert parameter_importance(made)[LR] > 0.85


def test_parameters_of_a_search_need_more_trials_the_more_they_are() -> None:
    points = [
        {LR: 10 ** (-n / 5), DECAY: n / 40, "train.model.rope_theta": 1e4 + n} for n in range(15)
    ]
    trials = [trial(n, 3.0 + n, parameters=point) for n, point in enumerate(points)]
    assert len(parameter_importance(sweep(trials))) == 3
    assert parameter_importance(sweep(trials[:14])) == {}


def test_few_trials_and_a_single_parameter_have_no_shares():
    assert parameter_importance(grid(rates=1)) == {}
    one = [trial(n, 3.0 + n, parameters={LR: 10**-n}) for n in range(ENOUGH + 2)]
    assert parameter_importance(sweep(one)) == {}
    few = [trial(n, 3.0 + n, parameters={LR: 10**-n, DECAY: n / 10}) for n in range(ENOUGH - 1)]
    assert parameter_importance(sweep(few)) == {}
