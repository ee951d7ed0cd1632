"""Labelled curves: each problem raises its alert, and a healthy run raises none."""

import math
from typing import get_args

import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from lehr.analysis.curve import Curve
from lehr.analysis.diagnosis import JUDGED, RULES, diagnose
from lehr.analysis.diagnosis.signs import Places
from lehr.specs.gates import AlertCode
from lehr_testing.properties import examples

STEPS = list(range(1, 1001))


def healthy(seed, *, noise=0.05, start=11.8, floor=3.0):
    """A power law with noise: how real pretraining losses fall."""
    rng = np.random.default_rng(seed)
    steps = np.arange(1, 1001)
    return floor + (start - floor) * (1 + steps / 30) ** -0.6 + rng.normal(0, noise, 1000)


def curve(values, steps=STEPS):
    return Curve(steps, [float(v) for v in values])


def codes(curves, **kwargs):
    return {alert.code for alert in diagnose(curves, total_steps=1000, warmup_steps=20, **kwargs)}


def fp32_check(loss, seed, *, every=50, spread=0.35, lie=0.0):
    """Values that the trainer logs for one sequence, randomly easier or harder than the batch.

    ``lie`` is how far the training's own loss lies under the true one from the middle on.
    """
    at = slice(every - 1, None, every)
    exact = loss[at] + np.random.default_rng(1000 + seed).normal(0, spread, len(loss[at]))
    rounding = np.random.default_rng(2000 + seed).normal(0, 0.002, len(exact))
    later = np.asarray(STEPS[: len(loss)][at]) > 500
    return {
        "raw_ce_fp32": curve(exact, STEPS[: len(loss)][at]),
        "loss_same_tokens": curve(exact + rounding - lie * later, STEPS[: len(loss)][at]),
    }


def test_only_rules_that_need_no_length_judge_a_run_whose_length_is_not_known():
    flat = curve([*np.linspace(11.8, 5.0, 200), *(5.0 + 0.01 * healthy(1)[:500])], STEPS[:700])
    rises = curve([*healthy(0)[:700], *np.linspace(4.5, 9.0, 300)])
    assert "stagnant" in codes({"train/loss": flat})
    for found, expected in (
        (flat, []),
        (rises, ["diverging"]),
        (curve([math.nan] * 1000), ["nan"]),
    ):
        alerts = diagnose({"train/loss": found}, total_steps=None)
        assert [alert.code for alert in alerts] == expected


@pytest.mark.parametrize("same_tokens", [True, False], ids=["with the same tokens", "without"])
@pytest.mark.parametrize("seed", range(20))
def test_a_healthy_run_raises_no_alerts_at_any_point_of_its_life(seed, same_tokens):
    loss = healthy(seed, noise=0.02 + 0.1 * (seed % 5) / 5)
    norms = 1 + 5 * np.exp(-np.arange(1000) / 50) + np.random.default_rng(seed).gamma(2, 0.1, 1000)
    for end in (5, 30, 100, 250, 400, 550, 700, 850, 1000):
        check = fp32_check(loss[:end], seed)
        if not same_tokens:  # As a trainer before logged it.
            del check["loss_same_tokens"]
        curves = {
            "train/loss": curve(loss[:end], STEPS[:end]),
            "train/grad_norm": curve(norms[:end], STEPS[:end]),
            "step_time_s": curve([0.5] * end, STEPS[:end]),
            "data_wait_s": curve([0.001] * end, STEPS[:end]),
            "val/loss": curve(loss[:end:100] + 0.05, STEPS[:end:100]),
            **check,
        }
        assert codes(curves) == set()


@pytest.mark.parametrize("lie", [0.3, 1.0, 5.0])
@pytest.mark.parametrize("seed", range(5))
def test_silent_divergence_of_the_reference_run_is_found_at_its_first_step(seed, lie):
    """The alert does not depend on how hard the one sequence is."""
    loss = healthy(seed)
    check = fp32_check(loss, seed, lie=lie)
    (alert,) = (
        a
        for a in diagnose({"train/loss": curve(loss), **check}, total_steps=1000)
        if a.code == "too_good"
    )
    assert alert.step == 550
    assert f"now by {lie:.1f}" in alert.seen
    assert "too good to be true" in alert.message


def test_nan_alert_has_its_step():
    loss = healthy(0)
    loss[187:] = math.nan
    (alert,) = (
        a for a in diagnose({"train/loss": curve(loss)}, total_steps=1000) if a.code == "nan"
    )
    assert alert.step == 188


# --- which rank ------------------------------------------------------------------------------


def rank_curves(own, steps=200):
    """Curves of ranks with the own parts ``own`` [points, ranks] of a step of one second."""
    columns = {
        "ranks/max_own_time_s": own.max(1),
        "ranks/median_own_time_s": np.sort(own)[:, (own.shape[1] - 1) // 2],
        "ranks/slowest": own.argmax(1),
        "step_time_s": np.ones(len(own)),
    }
    return {name: curve(values, range(1, steps + 1)) for name, values in columns.items()}


@pytest.mark.parametrize("ranks", [2, 4, 64])
def test_slow_rank_is_named_with_its_place_since_its_attempt(ranks):
    rng = np.random.default_rng(ranks)
    own = 0.6 + 0.05 * rng.normal(size=(200, ranks))
    own[100:, ranks - 1] += 0.3
    names = tuple(f"n{rank // 8}, GPU {rank % 8}" for rank in range(ranks))
    (alert,) = diagnose(rank_curves(own), total_steps=200, places=Places(0, names))
    assert (alert.code, alert.step) == ("straggler", 101)
    assert f"rank {ranks - 1} ({names[-1]})" in alert.seen
    assert diagnose(rank_curves(own), total_steps=200, places=Places(160, names)) == []
    (unplaced,) = diagnose(rank_curves(own), total_steps=200)
    assert f"rank {ranks - 1} since" in unplaced.seen


@pytest.mark.parametrize(
    "kind", ["chips differ", "in turns", "for a while", "by chance", "at rest"]
)
def test_ranks_that_are_not_slow_for_long_or_by_much_are_not_named(kind):
    rng = np.random.default_rng(5)
    own = 0.6 + 0.05 * rng.normal(size=(200, 4))
    if kind == "chips differ":
        own = 0.6 + np.array([0.0, 0.02, 0.04, 0.08]) + 0.005 * rng.normal(size=(200, 4))
    if kind == "in turns":
        own[np.arange(200), np.arange(200) // 10 % 4] += 0.4
    if kind == "for a while":
        own[140:175, 1] += 0.4
    if kind == "by chance":
        own[np.arange(200), rng.integers(0, 4, 200)] += 0.4
    if kind == "at rest":
        own[:150, 2] += 0.4
    assert diagnose(rank_curves(own), total_steps=200) == []


# --- which data ------------------------------------------------------------------------------


def batches(digests, *, blocks_per_epoch=10_000, superseded=(), first=1, every=1):
    """The curves of a run that logged these digests; each step is one of so many of an epoch."""
    steps = list(range(first, first + every * len(digests), every))
    return {
        "data/digest": Curve(steps, [float(d) for d in digests], tuple(superseded)),
        "data/epoch": Curve(steps, [step / blocks_per_epoch for step in steps]),
    }


def fresh(count, seed=0):
    return [int(d) for d in np.random.default_rng(seed).integers(0, 2**52, count)]


def test_a_batch_that_every_step_repeats_is_found():
    (alert,) = diagnose(batches(fresh(100) + [7] * 50), total_steps=1000)
    assert (alert.code, alert.step) == ("repeated_batches", 102)
    assert "step 102 had the same batch as step 101" in alert.seen
    assert "49 logged steps" in alert.seen


@pytest.mark.parametrize("every", [1, 5])
def test_a_stretch_of_the_data_order_that_is_taken_again_is_found(every):
    digests = fresh(60)
    found = batches(digests + digests[20:40], every=every)
    (alert,) = diagnose(found, total_steps=1000)
    assert (alert.code, alert.step) == ("repeated_batches", 60 * every + 1)
    assert f"as step {20 * every + 1:,}" in alert.seen


def test_a_repetition_in_a_fork_is_found_though_its_steps_are_smaller_than_those_before():
    digests = fresh(60)
    found = batches(digests + digests[20:40], first=101)
    steps = found["data/epoch"].steps
    found["data/epoch"] = Curve(steps, [50 + (step - 100) / 10_000 for step in steps])
    assert codes(found) == {"repeated_batches"}


@pytest.mark.parametrize("per_epoch", [1, 0.25, 2, 3])
def test_batches_of_a_small_corpus_may_repeat_in_later_epochs(per_epoch):
    """With a whole number of batches in an epoch, each batch may come again in the next one."""
    digests = [step % max(1, int(per_epoch)) for step in range(90)]
    assert codes(batches(digests, blocks_per_epoch=per_epoch)) == set()


def test_other_data_after_a_resume_is_found_at_its_first_step():
    digests = fresh(100)
    lost = Curve(list(range(71, 81)), digests[70:80])
    assert codes(batches(digests, superseded=[lost])) == set()
    lost = Curve(list(range(71, 81)), [*digests[70:75], *fresh(5, seed=1)])
    (alert,) = diagnose(batches(digests, superseded=[lost]), total_steps=1000)
    assert (alert.code, alert.step) == ("other_data", 76)
    assert "the batch of step 76 is another one" in alert.seen


def test_each_alert_that_a_gate_can_ignore_has_a_rule():
    assert set(get_args(AlertCode)) == RULES.keys()


def test_judged_metrics_are_exactly_those_that_the_rules_read():
    class Recorded(dict):
        def get(self, name, default=None):
            read.add(name)
            return super().get(name, default)

    read: set[str] = set()
    diagnose(
        Recorded({"train/loss": curve(healthy(0)), **fp32_check(healthy(0), 0)}), total_steps=1000
    )
    assert read == set(JUDGED)


ODD = st.one_of(
    st.floats(-10, 10),
    st.floats(allow_nan=True, allow_infinity=True),
    st.sampled_from([0.0, 1e-300, 1e300, -1.0, 1e9]),
)
METRICS = (
    *JUDGED,
    "params/layers.0/grad_norm",
    "params/layers.0/update_ratio",
    "params/embedding/grad_norm",
)


@st.composite
def odd_curves(draw):
    """Curves of any shape: constant, empty, not finite, with gaps; of steps that a run may not have."""
    found = {}
    for name in draw(st.lists(st.sampled_from(METRICS), unique=True, min_size=1)):
        length = draw(st.integers(0, 200))
        every = draw(st.integers(1, 50))
        first = draw(st.integers(0, 2_000))
        steps = [first + every * n for n in range(length)]
        pattern = draw(st.lists(ODD, min_size=1, max_size=12))
        slope = draw(st.floats(-0.1, 0.1))
        values = [pattern[n % len(pattern)] + slope * n for n in range(length)]
        earlier = (Curve(steps[: length // 2], values[: length // 2][::-1]),) if length > 4 else ()
        found[name] = Curve(steps, values, earlier)
    return found


@given(curves=odd_curves(), total=st.integers(1, 5_000), warmup=st.integers(0, 6_000))
@example(  # All points are in the last quarter: nothing is known of the time before.
    curves={"train/loss": Curve(list(range(500, 700)), [3.0] * 200)}, total=1_000, warmup=0
)
@example(  # A clock that went back.
    curves={"step_time_s": Curve(list(range(1, 201)), [-1.0] * 200)}, total=200, warmup=0
)
@example(  # An update so large that its ratio to the usual one is infinite.
    curves={"params/head/update_ratio": Curve([1, 2, 3], [9e305] * 3)}, total=6, warmup=0
)
@settings(max_examples=examples(300))
@pytest.mark.filterwarnings("error::RuntimeWarning")
def test_no_curve_however_odd_stops_the_diagnosis(curves, total, warmup):
    found = diagnose(curves, total_steps=total, warmup_steps=warmup)
    steps = {step for curve in curves.values() for step in curve.steps}
    assert all(alert.step in steps or alert.step >= 0 for alert in found)
    assert [alert.step for alert in found] == sorted(alert.step for alert in found)


def test_advice_for_an_update_beyond_all_measure_is_bounded():
    curves = {"params/head/update_ratio": Curve([1, 2, 3], [9e305] * 3)}
    [alert] = diagnose(curves, total_steps=6, warmup_steps=0)
    assert alert.code == "high_lr"
    assert "1/100 of the learning rate" in str(alert)
