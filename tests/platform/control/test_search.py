"""Sampling and pruning, replayed from recorded trials."""

import math
from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from lehr.control.search import SearchTrial, TrialReport, ask, prune
from lehr.specs.search import AshaPruning, HyperbandPruning, MedianPruning, Range
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


def test_trial_with_a_nan_metric_is_pruned():
    trials = [
        SearchTrial(1, {}, "completed", curve(2.0, until=200)),
        SearchTrial(2, {}, "running", (TrialReport(20, math.nan, 300.0),)),
    ]
    (verdict,) = prune(RULES[0], trials, goal="minimize", total_steps=200)
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
