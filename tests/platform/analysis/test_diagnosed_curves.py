"""The labelled set: each anomaly raises its alert, and healthy runs raise none."""

import numpy as np
import pytest

from lehr.analysis.curve import Curve
from lehr.analysis.diagnosis import LOSS, NEEDS, RULES, diagnose, unjudged
from lehr.analysis.diagnosis.machine_rules import SLOWEST
from lehr_testing.anomalies import ANOMALIES
from lehr_testing.diagnosed_curves import Labelled, anomalous, healthy, real_runs, without
from lehr_testing.healthy_families import HEALTHY

MOMENTS = 12
WEAK = {"climbs": 36, "leaves training": 34}
"""Anomalies drawn down to where they cannot be seen: how many of 40 must be found."""
REAL = {f"{run.name}, seed {run.seed}": run for run in real_runs()}


def raised(run: Labelled, moments: int = MOMENTS) -> dict[str, int]:
    """The alerts of a run judged at so many moments, each with the first step at which it was raised."""
    steps = run.curves["train/loss"].steps
    found: dict[str, int] = {}
    for at in np.linspace(len(steps) / moments, len(steps), moments).astype(int):
        step = steps[at - 1]
        for alert in diagnose(
            run.until(step),
            total_steps=run.total_steps,
            warmup_steps=run.warmup_steps,
            changes=run.changes,
        ):
            found.setdefault(alert.code, step)
    return found


@pytest.mark.parametrize("seed", [0, 1])
@pytest.mark.parametrize("name", HEALTHY)
def test_healthy_family_raises_no_alert_at_any_moment(name, seed):
    assert raised(healthy(name, seed)) == {}


@pytest.mark.parametrize("seed", [0, 1])
@pytest.mark.parametrize("name", sorted(ANOMALIES.keys() - WEAK.keys()))
def test_anomaly_is_found_by_its_name(name, seed):
    run = anomalous(name, seed)
    assert set(raised(run)) & set(run.label)


@pytest.mark.parametrize(("name", "least"), WEAK.items())
def test_most_anomalies_drawn_down_to_the_noise_are_found(name, least):
    runs = [anomalous(name, seed) for seed in range(40)]
    assert sum(bool(set(raised(run)) & set(run.label)) for run in runs) >= least


@pytest.mark.parametrize("name", [name for name, run in REAL.items() if not run.label])
def test_healthy_run_of_the_trainer_raises_no_alert_at_any_moment(name):
    assert raised(REAL[name]) == {}


@pytest.mark.parametrize("name", [n for n, run in REAL.items() if run.label])
def test_anomaly_of_a_real_run_is_found_by_its_name(name):
    assert set(raised(REAL[name])) & set(REAL[name].label)


def test_every_rule_of_curves_is_simulated():
    simulated = {code for _, label, _ in ANOMALIES.values() for code in label}
    # Curves do not show what is lost of them: tests/api/test_runs.py.
    assert RULES.keys() - simulated == {"high_lr", "lost_records"}
    assert {code for run in REAL.values() for code in run.label} >= {"high_lr"}


def lacks(curves):
    return unjudged({name: (len(curve), len(curve)) for name, curve in curves.items()}, 1000)


@pytest.mark.parametrize(
    "code", [code for code, needs in NEEDS.items() if needs.metrics != ((LOSS,),)]
)
def test_rule_without_its_metrics_is_named_and_silent(code):
    """Of each group of metrics that a rule needs one, all are taken away."""
    run = (
        next(
            anomalous(name, 0)
            for name, (_, label, _) in [*ANOMALIES.items(), *ANOMALIES.items()]
            if code in label
        )
        if code != "high_lr"
        else REAL["lr x30, seed 0"]
    )
    assert code not in lacks(run.curves)
    for group in NEEDS[code].metrics:
        names = [name.replace("params/*/", "params/") for name in group]
        if names[0].startswith("params/"):
            less = {k: v for k, v in run.curves.items() if not k.startswith("params/")}
        else:
            less = without(run, *names).curves
        # Without any figure of the ranks there is one rank, and nothing to judge.
        named = [" or ".join(group)] if group != (SLOWEST,) else None
        assert lacks(less).get(code) == named
        found = diagnose(less, total_steps=run.total_steps, warmup_steps=run.warmup_steps)
        assert code not in {alert.code for alert in found}


def test_every_alert_has_its_certainty_its_cause_and_advice():
    for name in ANOMALIES:
        run = anomalous(name, 0)
        for alert in diagnose(
            run.curves, total_steps=run.total_steps, warmup_steps=run.warmup_steps
        ):
            assert alert.sure in {"certain", "likely", "possible"}
            assert alert.cause
            assert alert.advice
            assert alert.source or alert.sure == "certain"


def test_slower_steps_after_a_change_of_the_batch_are_no_slowdown():
    run = healthy("sequence-length stage", 0)
    assert run.changes
    blind = diagnose(run.curves, total_steps=run.total_steps, warmup_steps=run.warmup_steps)
    assert {alert.code for alert in blind} == {"slowdown"}
    assert raised(run) == {}


def test_loss_of_a_whole_batch_is_not_compared_with_the_check_of_one_sequence():
    """A single sequence may be harder than its batch by more than any rounding."""
    run = healthy("plain", 0)
    curves = dict(run.curves)
    check = curves["raw_ce_fp32"]
    curves["raw_ce_fp32"] = Curve(check.steps, [value + 1 for value in check.values])
    del curves["loss_same_tokens"]
    assert diagnose(curves, total_steps=run.total_steps, warmup_steps=run.warmup_steps) == []
    assert lacks(curves) == {"too_good": ["loss_same_tokens"]}


@pytest.mark.parametrize(("period", "found"), [(2, True), (8, True), (40, False)])
def test_only_short_periods_are_an_oscillation(period, found):
    rng = np.random.default_rng(3)
    steps = np.arange(1, 601)
    loss = 3 + 5 * (1 + steps / 20) ** -0.6 + rng.normal(0, 0.03, 600)
    loss += 0.15 * np.cos(2 * np.pi * steps / period)
    alerts = diagnose({"train/loss": Curve(list(steps), list(loss))}, total_steps=600)
    assert ("oscillating" in {alert.code for alert in alerts}) == found


@pytest.mark.parametrize(("vocabulary", "loss", "found"), [
    (131_072, 0.7, True), (131_072, 1.2, False), (256, 0.15, True), (256, 0.4, False),
])  # fmt: skip
def test_lowest_plausible_loss_depends_on_the_vocabulary(vocabulary, loss, found):
    first = float(np.log(vocabulary))
    values = [first] * 5 + [loss] * 40
    curves = {"train/loss": Curve(list(range(1, 46)), values)}
    codes = {alert.code for alert in diagnose(curves, total_steps=1000)}
    assert ("implausible" in codes) == found


def test_low_loss_after_several_passes_is_memorization():
    values = [11.8] * 5 + [0.1] * 40
    epochs = Curve(list(range(1, 46)), [step / 10 for step in range(1, 46)])
    curves = {"train/loss": Curve(list(range(1, 46)), values), "data/epoch": epochs}
    (alert,) = diagnose(curves, total_steps=1000)
    assert alert.code == "memorization"
    assert "after 4.5 passes" in alert.seen


@pytest.mark.parametrize(("ratio", "code"), [(1e-5, "low_lr"), (1e-3, None), (0.01, None), (0.05, "high_lr")])  # fmt: skip
def test_updates_far_from_usual_name_a_factor(ratio, code):
    curves = {
        f"params/{part}/update_ratio": Curve(list(range(50, 501, 50)), [ratio] * 10)
        for part in ("first_layer", "last_layer")
    }
    found = {alert.code: alert for alert in diagnose(curves, total_steps=1000)}
    assert set(found) == {code} - {None}
    if code == "low_lr":
        assert "About 100 times the learning rate" in found[code].advice
    if code == "high_lr":
        assert "1/10 of the learning rate" in found[code].advice


@pytest.mark.parametrize("seed", [0, 1, 2])
def test_rate_too_high_at_the_first_steps_is_not_called_too_low_from_the_loss_alone(seed):
    run = anomalous("at once, to a plateau", seed)
    alerts = diagnose(
        {"train/loss": run.curves["train/loss"]},
        total_steps=run.total_steps,
        warmup_steps=run.warmup_steps,
    )
    assert "diverging" in {alert.code for alert in alerts}
    assert "low_lr" not in {alert.code for alert in alerts}
    (found,) = (alert for alert in alerts if alert.code == "diverging")
    assert found.step <= run.curves["train/loss"].steps[5]
    assert "above that of untrained weights" in found.seen


def test_rule_with_too_few_points_is_named_with_how_many_it_needs():
    found = unjudged({"train/loss": (80, 70), "val/loss": (3, 3)}, None)
    assert found["overfitting"] == ["4 points of val/loss (it has 3)"]
    few = "75 points of train/loss after the warmup (it has 70)"
    assert found["stagnant"] == [few, "the number of steps"]
    assert not {"nan", "spikes", "memorization"} & found.keys()
