"""The share of each parameter of a sweep in what decides its metric."""

from __future__ import annotations

import math

import pytest

from lehr.analysis.importance import ENOUGH, parameter_importance
from lehr.schemas.sweeps import SweepDetail

from .test_figures import LR, sweep, trial

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


def test_few_trials_and_a_single_parameter_have_no_shares():
    assert parameter_importance(grid(rates=1)) == {}
    one = [trial(n, 3.0 + n, parameters={LR: 10**-n}) for n in range(ENOUGH + 2)]
    assert parameter_importance(sweep(one)) == {}
    few = [trial(n, 3.0 + n, parameters={LR: 10**-n, DECAY: n / 10}) for n in range(ENOUGH - 1)]
    assert parameter_importance(sweep(few)) == {}
