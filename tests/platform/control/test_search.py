"""Sampling and pruning, replayed from recorded trials."""

import math
from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from lehr.analysis.forecast import RatePlan
from lehr.control.search import SearchTrial, TrialReport, ask, prune, replay
from lehr.specs.search import AshaPruning, ForecastPruning, HyperbandPruning, MedianPruning, Range
from lehr_testing.properties import examples

LR = Range(min=1e-5, max=1e-1, distribution="log_uniform_values")


def curve(level, *, until, every=10, start=0.0, worse=0.0):
    """A loss that falls towards ``level``; reports come a second apart."""
    return tuple(
        TrialReport(step=step, value=level + math.exp(-step / 50) + worse, at=start + step / every)
        for step in range(every, until + 1, every)
    )


@pytest.mark.parametrize("goal", ["minimize", "maximize"])
def test_tpe_returns_to_the_best_region_and_is_the_same_after_a_restart(goal):
    sign = 1 if goal == "minimize" else -1
    trials = []
    for number in range(1, 41):
        lr = ask({"lr": LR}, trials, goal=goal, seed=3, number=number)["lr"]
        value = sign * (3 + math.log10(lr / 1e-3) ** 2)
        trials.append(
            SearchTrial(number, {"lr": lr}, "completed", (TrialReport(100, value, float(number)),))
        )
    again = ask({"lr": LR}, trials[:20], goal=goal, seed=3, number=21)
    assert again["lr"] == trials[20].parameters["lr"]
    late = [abs(math.log10(t.parameters["lr"] / 1e-3)) for t in trials[20:]]
    early = [abs(math.log10(t.parameters["lr"] / 1e-3)) for t in trials[:10]]
    assert sum(late) / len(late) < sum(early) / len(early)


RULES = [
    AshaPruning(name="asha", min_steps=20, reduction=2),
    MedianPruning(name="median", startup_trials=1, min_steps=10),
    HyperbandPruning(name="hyperband", min_steps=20, reduction=2),
]


def mirrored(trials):
    """Return the same trials for a metric to maximize."""
    return [
        replace(trial, reports=tuple(replace(r, value=-r.value) for r in trial.reports))
        for trial in trials
    ]


@pytest.mark.parametrize("goal", ["minimize", "maximize"])
@pytest.mark.parametrize("rule", RULES[:2], ids=lambda rule: rule.name)
def test_pruner_prunes_a_far_worse_trial_and_never_the_best(rule, goal):
    trials = [
        SearchTrial(1, {}, "completed", curve(2.0, until=200)),
        *(
            SearchTrial(n, {}, "running", curve(2.0 + n / 10, until=80, start=5.0 * n))
            for n in range(2, 9)
        ),
        SearchTrial(9, {}, "running", curve(2.0, until=80, start=100.0, worse=5.0)),
        SearchTrial(10, {}, "running", curve(1.0, until=80, start=120.0)),
    ]
    given = trials if goal == "minimize" else mirrored(trials)
    pruned = {verdict.number for verdict in prune(rule, given, goal=goal, total_steps=200)}
    assert 9 in pruned
    assert not pruned & {1, 10}


@pytest.mark.parametrize("goal", ["minimize", "maximize"])
@pytest.mark.parametrize("rule", RULES, ids=lambda rule: rule.name)
def test_pruner_prunes_only_trials_of_the_worse_half(rule, goal):
    """Also by hyperband, whose brackets differ in how soon they judge: it needs many trials."""
    good, bad = range(1, 13), range(13, 31)
    trials = [SearchTrial(n, {}, "completed", curve(1.0, until=200, start=30.0 * n)) for n in good]
    trials += [SearchTrial(n, {}, "running", curve(5.0, until=190, start=30.0 * n)) for n in bad]
    given = trials if goal == "minimize" else mirrored(trials)
    pruned = {verdict.number for verdict in prune(rule, given, goal=goal, total_steps=200)}
    assert len(pruned) >= len(bad) / 2
    assert pruned <= set(bad)


FORECAST = ForecastPruning(name="forecast", min_steps=40)
CONSTANT = RatePlan((0, 1, 400), (0.0, 1.0, 1.0))
CLIFF = RatePlan((0, 1, 320, 400), (0.0, 1.0, 1.0, 0.0))


def loss(level, *, until=200, start=0.0, number=1, state="running", plan=CONSTANT):
    """A trial of 400 steps whose loss falls by a power law."""
    reports = tuple(
        TrialReport(step, level * (1 + 0.5 * (step / 100) ** -0.5), start + step)
        for step in range(10, until + 1, 10)
    )
    return SearchTrial(number, {}, state, reports, 400, (plan, ()))


def pruned_by_forecast(*trials):
    trials = [replace(trial, number=n) for n, trial in enumerate(trials, start=1)]
    return [v.number for v in prune(FORECAST, trials, goal="minimize", total_steps=400)]


def test_forecast_prunes_what_cannot_win_and_nothing_that_may():
    best, worse, near = loss(2.0), loss(3.0), loss(2.002)
    assert pruned_by_forecast(best, worse, near) == [2]
    assert pruned_by_forecast(loss(2.0, until=400, state="completed"), worse, near) == [2]
    assert pruned_by_forecast(worse, near) == [1]
    assert pruned_by_forecast(worse) == []
    # Trials that have failed or were pruned win nothing.
    assert pruned_by_forecast(loss(2.0, state="pruned"), loss(2.0, state="failed"), worse) == []
    assert pruned_by_forecast(best, loss(9.0, until=30)) == []  # Before min_steps.
    # One whose end cannot be known may win.
    assert pruned_by_forecast(best, replace(worse, total_steps=None)) == []


def test_forecast_counts_the_decay_that_a_schedule_has_yet_to_bring():
    """At equal steps the decaying trial is better now; the other one's rate is yet to fall."""
    lead = loss(1.0, until=300, state="running")
    close = [1.002 + n / 500 for n in range(25)]
    by_plan = {
        plan: [
            level for level in close if pruned_by_forecast(lead, loss(level, until=300, plan=plan))
        ]
        for plan in (CONSTANT, CLIFF)
    }
    assert set(by_plan[CLIFF]) < set(by_plan[CONSTANT])


def test_replay_of_ended_trials_stops_where_the_rule_would_have():
    trials = [
        loss(level, until=400, number=n, state="completed", start=n)
        for n, level in enumerate((2.0, 3.0, 2.001), start=1)
    ]
    (verdict,) = replay(FORECAST, trials)
    assert verdict.number == 2
    assert 40 <= verdict.step < 300


@pytest.mark.parametrize("rule", [RULES[0], FORECAST], ids=lambda rule: rule.name)
def test_trial_with_a_nan_metric_is_pruned(rule):
    step = 40
    trials = [
        SearchTrial(1, {}, "completed", curve(2.0, until=200)),
        SearchTrial(2, {}, "running", (TrialReport(step, math.nan, 300.0),)),
    ]
    (verdict,) = prune(rule, trials, goal="minimize", total_steps=200)
    assert verdict.number == 2
    assert "nan" in verdict.message


@given(
    levels=st.lists(st.floats(0, 10), min_size=2, max_size=8),
    ends=st.lists(st.integers(1, 20), min_size=8, max_size=8),
    rule=st.sampled_from(RULES),
)
@settings(max_examples=examples(40), deadline=None)
def test_pruning_is_deterministic_and_prunes_only_running_trials(levels, ends, rule):
    trials = [
        SearchTrial(
            n,
            {},
            "completed" if n == 1 else "running",
            curve(level, until=ends[n - 1] * 10, start=n),
        )
        for n, level in enumerate(levels, start=1)
    ]
    first = prune(rule, trials, goal="minimize", total_steps=200)
    assert first == prune(rule, list(reversed(trials)), goal="minimize", total_steps=200)
    assert all(trials[verdict.number - 1].state == "running" for verdict in first)


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({"min": 1, "max": 1}, "not below"),
        ({"min": 0, "max": 1, "distribution": "log_uniform_values"}, "no logarithm"),
        ({"min": 0.5, "max": 2, "distribution": "int_uniform"}, "whole numbers"),
        ({"min": 0, "max": 1, "q": 0.1}, "takes no q"),
    ],
)
def test_invalid_range_is_rejected(values, message):
    with pytest.raises(ValueError, match=message):
        Range.model_validate(values)
