"""Labelled curves: each trouble is named, and a healthy run is left in peace."""

import math

import numpy as np
import pytest

from lehr.analysis.diagnosis import Curve, diagnose

STEPS = list(range(1, 1001))


def healthy(seed, *, noise=0.05, start=11.8, floor=3.0):
    """A power law with noise: how real pretraining losses fall."""
    rng = np.random.default_rng(seed)
    steps = np.arange(1, 1001)
    return floor + (start - floor) * (1 + steps / 30) ** -0.6 + rng.normal(0, noise, 1000)


def curve(values, steps=STEPS):
    return Curve(steps, [float(v) for v in values])


def codes(curves, **kwargs):
    return {alarm.code for alarm in diagnose(curves, total_steps=1000, warmup_steps=20, **kwargs)}


@pytest.mark.parametrize("seed", range(50))
def test_a_healthy_run_raises_no_alarm_at_any_point_of_its_life(seed):
    loss = healthy(seed, noise=0.02 + 0.1 * (seed % 5) / 5)
    norms = 1 + 5 * np.exp(-np.arange(1000) / 50) + np.random.default_rng(seed).gamma(2, 0.1, 1000)
    for end in (5, 30, 100, 400, 700, 1000):
        curves = {
            "train/loss": curve(loss[:end], STEPS[:end]),
            "train/grad_norm": curve(norms[:end], STEPS[:end]),
            "step_time_s": curve([0.5] * end, STEPS[:end]),
            "data_wait_s": curve([0.001] * end, STEPS[:end]),
            "val/loss": curve(loss[:end:100] + 0.05, STEPS[:end:100]),
            "raw_ce_fp32": curve(loss[:end:100] + 0.002, STEPS[:end:100]),
        }
        assert codes(curves) == set()


def test_p2s_silent_divergence_is_seen_from_the_step_where_it_began():
    loss = healthy(0)
    loss[500:] -= 1.0
    check = healthy(1)
    (alarm,) = (
        a
        for a in diagnose(
            {"train/loss": curve(loss), "raw_ce_fp32": curve(check[49::50], STEPS[49::50])},
            total_steps=1000,
        )
        if a.code == "too_good"
    )
    assert alarm.step == 550
    assert "too good to be true" in alarm.message


def test_nan_is_named_with_its_step():
    loss = healthy(0)
    loss[187:] = math.nan
    (alarm,) = (
        a for a in diagnose({"train/loss": curve(loss)}, total_steps=1000) if a.code == "nan"
    )
    assert alarm.step == 188


@pytest.mark.parametrize("seed", range(10))
def test_a_loss_that_climbs_and_stays_up_is_diverging(seed):
    loss = healthy(seed)
    loss[400:] += np.minimum(np.arange(600) / 50, 3.0)
    assert "diverging" in codes({"train/loss": curve(loss)})


@pytest.mark.parametrize("seed", range(10))
def test_one_bump_that_heals_is_not_divergence(seed):
    loss = healthy(seed)
    loss[400:430] += 1.0
    assert "diverging" not in codes({"train/loss": curve(loss)})


@pytest.mark.parametrize("seed", range(10))
def test_a_flat_loss_in_mid_schedule_is_stagnant(seed):
    loss = np.full(1000, 8.0) + np.random.default_rng(seed).normal(0, 0.05, 1000)
    assert "stagnant" in codes({"train/loss": curve(loss)})


def test_repeated_spikes_are_counted():
    loss = healthy(0)
    loss[[300, 500, 620]] += 2.0
    (alarm,) = (
        a for a in diagnose({"train/loss": curve(loss)}, total_steps=1000) if a.code == "spikes"
    )
    assert "3 times" in alarm.seen


def test_a_gradient_norm_that_grew_tenfold_is_exploding():
    norms = np.concatenate([np.full(700, 0.5), np.full(300, 9.0)])
    assert "exploding" in codes({"train/grad_norm": curve(norms)})


def test_validation_that_rises_while_training_falls_is_overfitting():
    steps = list(range(100, 1001, 100))
    validation = [5, 4, 3.5, 3.2, 3.1, 3.2, 3.3, 3.4, 3.5, 3.6]
    assert "overfitting" in codes(
        {"train/loss": curve(healthy(0)), "val/loss": curve(validation, steps)}
    )


def test_waiting_for_data_is_said_as_a_share_of_the_step():
    curves = {"step_time_s": curve([0.5] * 1000), "data_wait_s": curve([0.1] * 1000)}
    (alarm,) = diagnose(curves, total_steps=1000)
    assert "20%" in alarm.seen


def test_nothing_recorded_is_nothing_wrong():
    assert diagnose({}, total_steps=10) == []
