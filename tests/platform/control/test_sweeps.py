"""The next step of a sweep, decided from its recorded trials."""

from __future__ import annotations

import dataclasses
import math
import random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from lehr.control.lifecycle import Desired, RunState
from lehr.control.search import SearchTrial, TrialReport, prune
from lehr.control.sweeps import (
    SAME_CAUSE,
    TrialState,
    at_rungs,
    decide,
    needs_reports,
    trials_remaining,
    wants_point,
)
from lehr.specs import SweepSpec, expand, load_spec
from lehr.specs.search import AshaPruning, HyperbandPruning, point_key
from lehr_testing.properties import examples

LR = {"min": 1e-5, "max": 1e-1, "distribution": "log_uniform_values"}


def sweep(**fields) -> SweepSpec:
    train = {
        "model": "tiny",
        "data": {"corpus": {"kind": "stdlib"}, "tokenizer": "byte"},
        "batch": {"sequences": 4, "sequence_length": 64},
        "steps": 100,
    }
    fields = {"parameters": {"train.seed": {"values": list(range(8))}}, **fields}
    spec = load_spec({"kind": "sweep", "name": "s", "run": {"train": train}, **fields})
    assert isinstance(spec, SweepSpec)
    return spec


def trials(spec, state=RunState.QUEUED):
    return [
        TrialState(n, parameters, f"r{n}", state, total_steps=100)
        for n, (parameters, _) in enumerate(expand(spec), start=1)
    ]


def failed(trial, cause="exception", at=1.0, reason="boom"):
    return dataclasses.replace(
        trial, state=RunState.FAILED, cause=cause, reason=reason, ended_at=at, attempt=1
    )


def ran(trial, loss, until=100, state=RunState.COMPLETED, every=10, at=0.0):
    reports = tuple(
        TrialReport(step, loss + math.exp(-step / 30), at + step)
        for step in range(every, until + 1, every)
    )
    return dataclasses.replace(trial, state=state, reports=reports, attempt=1, ended_at=at + until)


# ------------------------------------------------------------------------------------- stops


def test_sweep_stops_if_every_trial_fails_with_the_same_cause():
    spec = sweep()
    all_ = trials(spec)
    two = [failed(all_[0]), failed(all_[1]), *all_[2:]]
    assert decide(spec, two, stopped=False).stop is None
    three = [failed(c, at=float(c.number)) for c in all_[:SAME_CAUSE]] + all_[SAME_CAUSE:]
    why = decide(spec, three, stopped=False).stop
    assert why == "all 3 trials that ended failed in the same way: exception: boom"
    assert decide(spec, three, stopped=True).stop is None


@pytest.mark.parametrize(
    "other",
    [
        lambda trial: ran(trial, 2.0),
        lambda trial: ran(trial, 2.0, until=20, state=RunState.RUNNING),
        lambda trial: ran(trial, 2.0, until=20, state=RunState.PRUNED),
        lambda trial: failed(trial, cause="out_of_memory"),
    ],
    ids=["completed", "training", "pruned", "failed otherwise"],
)
def test_one_trial_with_another_outcome_keeps_the_sweep_running(other):
    spec = sweep()
    all_ = trials(spec)
    seen = [*(failed(trial) for trial in all_[:3]), other(all_[3]), *all_[4:]]
    assert decide(spec, seen, stopped=False).stop is None


def test_max_failed_counts_every_cause_since_the_last_retry():
    spec = sweep(max_failed=1)
    all_ = trials(spec)
    seen = [
        failed(all_[0], at=1.0),
        failed(all_[1], cause="nan_loss", at=2.0, reason="loss is nan"),
        ran(all_[2], 1.0),
        *all_[3:],
    ]
    why = decide(spec, seen, stopped=False).stop
    assert why == "2 trials failed, and max_failed is 1; the last: nan_loss: loss is nan"
    assert decide(spec, seen, stopped=False, reopened_at=1.5).stop is None
    assert decide(sweep(max_failed=2), seen, stopped=False).stop is None


# -------------------------------------------------------------------------------- more is better


@pytest.mark.parametrize("goal", ["minimize", "maximize"])
def test_pruned_trials_are_the_worse_ones_by_the_goal_of_the_sweep(goal):
    sign = 1 if goal == "minimize" else -1
    spec = sweep(
        metric={"name": "top1_acc", "goal": goal},
        pruning={"name": "median", "startup_trials": 1, "min_steps": 10},
    )
    all_ = trials(spec)
    good = [ran(trial, 1.0) for trial in all_[:4]]
    bad = [ran(trial, 9.0, until=80, state=RunState.RUNNING, at=500.0) for trial in all_[4:6]]
    best = [ran(all_[6], 0.5, until=80, state=RunState.RUNNING, at=900.0)]
    seen = [
        dataclasses.replace(
            trial,
            reports=tuple(dataclasses.replace(r, value=sign * r.value) for r in trial.reports),
        )
        for trial in (*good, *bad, *best)
    ]
    given = {give.run_id for give in decide(spec, seen, stopped=False).prune}
    assert given == {trial.run_id for trial in bad}


@pytest.mark.parametrize("goal", ["minimize", "maximize"])
def test_tpe_improves_by_the_goal_of_the_sweep(goal):
    sign = 1 if goal == "minimize" else -1
    spec = sweep(
        method="tpe",
        metric={"name": "top1_acc", "goal": goal},
        parameters={"train.optimizer.lr": LR},
        trials=30,
    )

    def done(trial):
        off = math.log10(trial.parameters["train.optimizer.lr"] / 1e-3) ** 2
        found = ran(trial, 2 + off)
        reports = tuple(dataclasses.replace(r, value=sign * r.value) for r in found.reports)
        return dataclasses.replace(found, reports=reports)

    seen = [done(trial) for trial in trials(spec)]
    while points := decide(spec, seen, stopped=False).points:
        for point in points:
            n = len(seen) + 1
            seen.append(done(TrialState(n, point, f"r{n}", RunState.QUEUED, total_steps=100)))
    off = [abs(math.log10(trial.parameters["train.optimizer.lr"] / 1e-3)) for trial in seen]
    assert sum(off[-10:]) < sum(off[:10])


# --------------------------------------------------------------------------------------- TPE


def test_tpe_chooses_a_point_when_no_run_waits_and_a_slot_is_free():
    spec = sweep(method="tpe", parameters={"train.optimizer.lr": LR}, trials=12, max_concurrent=2)
    drawn = trials(spec)
    assert not wants_point(spec, drawn)
    done = [ran(trial, 2.0) for trial in drawn[:8]]
    running = [dataclasses.replace(trial, state=RunState.RUNNING) for trial in drawn[8:]]
    assert not wants_point(spec, done + running)
    assert wants_point(spec, [*done, ran(drawn[8], 2.0), running[1]])
    assert decide(spec, [ran(trial, 2.0) for trial in drawn], stopped=True).points == ()


def test_tpe_stops_if_its_trials_have_different_held_out_sets():
    spec = sweep(method="tpe", parameters={"train.optimizer.lr": LR}, trials=12)
    same = [dataclasses.replace(ran(trial, 2.0), held_out="a" * 64) for trial in trials(spec)]
    assert decide(spec, same, stopped=False).points
    other = [*same[:-1], dataclasses.replace(same[-1], held_out="b" * 64)]
    decision = decide(spec, other, stopped=False)
    assert decision.points == ()
    assert decision.stop is not None
    assert "different held-out sets" in decision.stop
    assert "bbbbbbbb: trial 10" in decision.stop
    failed_ = [*other[:-1], dataclasses.replace(other[-1], state=RunState.FAILED)]
    assert decide(spec, failed_, stopped=False).stop is None
    unknown = [*same[:-1], dataclasses.replace(same[-1], held_out=None)]
    assert decide(spec, unknown, stopped=False).points


def test_trials_remaining_counts_a_point_once_for_all_seeds():
    spec = sweep(method="tpe", parameters={"train.optimizer.lr": LR}, trials=30, seeds=[0, 1])
    assert [trials_remaining(spec, trials) for trials in (0, 3, 59, 60, 61)] == [30, 29, 1, 0, 0]
    assert trials_remaining(sweep(), 0) == 0


# ----------------------------------------------------------------------------------- reports

SPECS = {
    "grid": {},
    "asha": {"pruning": {"name": "asha", "min_steps": 10, "reduction": 2}},
    "median": {"pruning": {"name": "median", "startup_trials": 1}},
    "tpe": {"method": "tpe", "parameters": {"train.optimizer.lr": LR}, "trials": 12},
}


@settings(max_examples=examples(100), deadline=None)
@given(st.sampled_from(list(SPECS)), st.integers(0, 10**6), st.booleans())
def test_skipping_reports_never_changes_a_decision(kind, seed, stopped):
    spec = sweep(**SPECS[kind])
    draw = random.Random(seed)

    def lived(trial):
        state = draw.choice(
            [RunState.RUNNING, RunState.COMPLETED, RunState.FAILED, RunState.QUEUED]
        )
        if state is RunState.FAILED:
            return failed(trial, at=5.0)
        if state is RunState.QUEUED:
            return trial
        until = 100 if state is RunState.COMPLETED else draw.choice([10, 50])
        return ran(trial, draw.uniform(1, 5), until=until, state=state)

    seen = [lived(trial) for trial in trials(spec)[: draw.randint(1, 8)]]
    unread = [dataclasses.replace(trial, reports=()) for trial in seen]
    if not needs_reports(spec, unread, stopped=stopped):
        assert decide(spec, unread, stopped=stopped) == decide(spec, seen, stopped=stopped)


def test_reports_are_read_if_a_trial_can_be_pruned():
    grid, asha = sweep(), sweep(**SPECS["asha"])
    [first, *rest] = trials(grid)
    running = dataclasses.replace(first, state=RunState.RUNNING)
    assert not needs_reports(grid, [running, *rest], stopped=False)
    assert not needs_reports(asha, [ran(first, 2.0), *rest], stopped=False)
    for stopped in (False, True):
        assert needs_reports(asha, [running, *rest], stopped=stopped)
    alike = [failed(trial) for trial in rest[:3]]
    assert needs_reports(grid, [running, *alike], stopped=False)
    assert not needs_reports(grid, [running, *alike], stopped=True)
    tpe = sweep(**SPECS["tpe"])
    done = [ran(trial, 2.0) for trial in trials(tpe)]
    assert needs_reports(tpe, done, stopped=False)
    assert not needs_reports(tpe, done, stopped=True)
    assert not needs_reports(tpe, trials(tpe), stopped=False)


# ----------------------------------------------------------------------------------- pruning


@pytest.mark.parametrize("name", ["asha", "median"])
def test_a_trial_is_pruned_only_against_its_own_held_out_set(name):
    spec = sweep(pruning={"name": name, "min_steps": 10})
    drawn = trials(spec)
    better = [ran(trial, 1.0, at=float(trial.number)) for trial in drawn[:-1]]
    worse = ran(drawn[-1], 3.0, until=40, state=RunState.RUNNING, at=500.0)

    def given_up(*digests):
        sets = [*([digests[0]] * len(better)), digests[1]]
        seen = [
            dataclasses.replace(trial, held_out=digest)
            for trial, digest in zip([*better, worse], sets, strict=True)
        ]
        return [give.run_id for give in decide(spec, seen, stopped=False).prune]

    assert given_up("a", "a") == [worse.run_id]
    assert given_up("a", "b") == []
    assert given_up("a", None) == [worse.run_id]


def test_asha_prunes_the_worst_running_trial_with_a_reason():
    spec = sweep(pruning={"name": "asha", "min_steps": 20, "reduction": 2})
    all_ = trials(spec)
    good = [ran(trial, 1.0 + trial.number / 100) for trial in all_[:4]]
    bad = ran(all_[4], 5.0, until=20, state=RunState.RUNNING, at=1000.0)
    fine = ran(all_[5], 0.5, until=20, state=RunState.RUNNING, at=1000.0)
    given_up = decide(spec, [*good, bad, fine], stopped=False).prune
    assert [give.run_id for give in given_up] == ["r5"]
    assert given_up[0].attempt == 1
    assert given_up[0].message.startswith("val/loss, asha: 5.5")
    requested = dataclasses.replace(bad, desired=Desired.PRUNE)
    assert decide(spec, [*good, requested, fine], stopped=False).prune == ()
    waits = dataclasses.replace(bad, state=RunState.QUEUED)
    assert decide(spec, [*good, waits, fine], stopped=False).prune == ()


@given(
    seed=st.integers(0, 10**6),
    rule=st.sampled_from(
        [
            AshaPruning(name="asha", min_steps=7, reduction=2),
            AshaPruning(name="asha", min_steps=20, reduction=4),
            HyperbandPruning(name="hyperband", min_steps=10, reduction=3),
        ]
    ),
)
@settings(max_examples=examples(20), deadline=None)
def test_reports_at_the_rungs_alone_give_the_same_decision(seed, rule):
    draw = random.Random(seed)
    trials = []
    for number in range(1, 9):
        until, level = draw.randrange(5, 101, 5), draw.random() * 3
        at = draw.random() * 500
        reports = tuple(
            TrialReport(step, level + draw.random(), at + step) for step in range(5, until + 1, 5)
        )
        state = "completed" if until == 100 else "running"
        trials.append(SearchTrial(number, {}, state, reports))
    thin = [
        dataclasses.replace(trial, reports=at_rungs(trial.reports, rule.min_steps, rule.reduction))
        for trial in trials
    ]
    whole = prune(rule, trials, goal="minimize", total_steps=100)
    assert prune(rule, thin, goal="minimize", total_steps=100) == whole


def test_point_key_ignores_order_and_number_type():
    assert point_key({"a": 1, "b": "x"}) == point_key({"b": "x", "a": 1.0})


def test_tpe_continues_after_failed_trials_without_repeating_points():
    values = {"train.seed": {"values": list(range(12))}}
    spec = sweep(method="tpe", parameters=values, trials=12)
    drawn = trials(spec)
    seen = [failed(trial, cause=f"cause {trial.number}") for trial in drawn[:3]]
    seen += [ran(trial, 2.0) for trial in drawn[3:]]
    [point] = decide(spec, seen, stopped=False).points
    assert point["train.seed"] not in [trial.parameters["train.seed"] for trial in seen]
    pruned = [dataclasses.replace(ran(c, 2.0), state=RunState.PRUNED) for c in drawn]
    assert len(decide(spec, pruned, stopped=False).points) == 1


def test_tpe_draws_each_point_of_a_finite_space_once():
    values = {"train.seed": {"values": list(range(13))}}
    spec = sweep(method="tpe", parameters=values, trials=13)
    seen = [ran(trial, 2.0) for trial in trials(spec)]
    while points := decide(spec, seen, stopped=False).points:
        n = len(seen) + 1
        seen.append(ran(TrialState(n, points[0], f"r{n}", RunState.QUEUED, total_steps=100), 2.0))
    assert sorted(trial.parameters["train.seed"] for trial in seen) == list(range(13))
