"""The forecast of a training's final loss."""

import math
from pathlib import Path

import numpy as np
import pytest

from lehr.analysis.forecast import UNPLANNED, RatePlan, forecast, planned, weights_of
from lehr.specs.stored import StoredSpec
from lehr_testing.specs import train as train_values
from lehr_trainer.configs.train import TrainConfig

TOTAL = 2000
CONSTANT = RatePlan((0, 1, TOTAL), (0.0, 1.0, 1.0))
CLIFF = RatePlan((0, 1, 1600, TOTAL), (0.0, 1.0, 1.0, 0.0))


def curve(
    until, *, every=40, noise=0.002, seed=0, of=lambda step: 2.2 + 1.5 * (step / 100) ** -0.5
):
    draw = np.random.default_rng(seed)
    steps = range(every, until + 1, every)
    return tuple(steps), tuple(of(step) * math.exp(noise * draw.normal()) for step in steps)


def test_band_holds_the_end_of_a_power_law_and_narrows():
    truth = 2.2 + 1.5 * (TOTAL / 100) ** -0.5
    early, late = (forecast(*curve(until), TOTAL, CONSTANT) for until in (400, 1600))
    assert early.sure[0] < truth < early.sure[1]
    assert late.value == pytest.approx(truth, rel=0.01)
    assert late.sure[1] - late.sure[0] < 0.3 * (early.sure[1] - early.sure[0])
    assert late.most[0] < late.sure[0] < late.likely[0] < late.value < late.likely[1]
    assert "from 40 losses until step 1,600 and the planned learning rates" in late.how


def test_decay_that_has_not_begun_lowers_the_forecast_of_the_same_losses():
    steps, losses = curve(1400)
    constant, decayed = (forecast(steps, losses, TOTAL, plan) for plan in (CONSTANT, CLIFF))
    assert decayed.value < 0.995 * constant.value
    assert decayed.sure[0] < 0.98 * constant.sure[0]


def test_unknown_schedule_widens_the_band_downwards_and_says_so():
    steps, losses = curve(1400)
    planned_, unknown = (forecast(steps, losses, TOTAL, plan) for plan in (CONSTANT, None))
    assert unknown.sure[0] < 0.99 * planned_.sure[0]
    assert "its later learning rates are not known, so the band is wider" in unknown.how


def test_spike_that_has_passed_changes_little():
    steps, losses = curve(1400)
    spike = {600: 1.5, 640: 1.3, 680: 1.1}
    hit = tuple(loss * spike.get(step, 1.0) for step, loss in zip(steps, losses, strict=True))
    smooth, spiked = (forecast(steps, values, TOTAL, CONSTANT) for values in (losses, hit))
    assert spiked.value == pytest.approx(smooth.value, rel=0.005)
    assert spiked.sure[0] == pytest.approx(smooth.sure[0], rel=0.02)


@pytest.mark.parametrize(
    ("losses", "more", "why"),
    [
        (curve(80), {}, "2 losses after the warmup; 3 and 2 % are needed"),
        (curve(800, of=lambda s: 3.0 if s < 600 else 3.0 + s / 6000), {}, "risen from 2.9"),
        (curve(800, of=lambda s: 3.0 if s < 800 else math.nan), {}, "no number above 0 at step 800"),
        (curve(800, of=lambda _: -1.0), {}, "no number above 0 at step 40"),
        (curve(800), {"changes": (1000,)}, "another stage or sequence length begins after step 1,000"),
        (curve(800), {"changes": (750,)}, "2 losses after the warmup"),
        (curve(800, noise=0.3, seed=1), {}, "the loss scatters by "),
        (curve(640), {"plan": RatePlan((0, 600, TOTAL), (0.0, 1.0, 1.0))}, "2 losses after the warmup"),
        (curve(800), {"plan": RatePlan((0, TOTAL), (0.0, 0.0))}, "learning rate is 0 at each step"),
        (curve(800), {"total": None}, "the number of its steps is not known"),
    ],
)  # fmt: skip
def test_no_forecast_where_it_cannot_know_and_the_reason(losses, more, why):
    found = forecast(*losses, **{"total": TOTAL, "plan": CONSTANT, **more})
    assert (found.value, found.sure) == (None, None)
    assert why in found.how


def test_a_tenth_of_the_draws_counts_even_where_one_explains_far_more_than_numbers_can_hold():
    weights = weights_of(np.array([0.0, *np.linspace(-5000.0, -2000.0, 999)]))
    assert weights.sum() ** 2 / (weights**2).sum() > 100


def test_planned_rates_are_those_of_the_trainer_through_all_stages():
    stages = [
        {"name": "first", "tokens": 256 * 60},
        {"name": "last", "tokens": 256 * 40, "optimizer": {"lr": 1e-4}, "schedule": "constant"},
    ]
    values = {**train_values(Path("/corpus"), schedule="wsd"), "stages": stages}
    del values["steps"]
    config = TrainConfig.model_validate(values)
    plan, changes = planned(StoredSpec({"train": config.model_dump(mode="json")}))
    rates = dict(zip(plan.steps, plan.rates, strict=True))
    assert (changes, plan.steps[-1]) == ((60,), 100)
    assert (rates[40], rates[60], rates[61]) == pytest.approx((1e-3, 1e-4, 1e-4))
    assert planned(StoredSpec({"trainer": {"args": {}}})) == UNPLANNED
