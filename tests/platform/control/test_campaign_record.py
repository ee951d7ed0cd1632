"""A campaign's next trial: what it costs, what it is told, and the budget, which it never exceeds."""

from __future__ import annotations

import dataclasses
import math
import random
import re
from collections.abc import Iterator, Sequence
from typing import Any

import pytest

from lehr.analysis.forecast import RatePlan
from lehr.analysis.laws.question import CampaignTrial, Next, Question
from lehr.control import campaign_choice
from lehr.control.campaign_record import (
    MARGIN,
    PROBE,
    STOP_S,
    TrialState,
    costs,
    ledger,
    next_trial,
    observed,
    refuse,
)
from lehr.control.lifecycle import Desired, RunState
from lehr.control.search import TrialReport
from lehr.control.sweeps import decide
from lehr.errors import SpecError
from lehr.specs import SweepSpec
from lehr.specs.search import point_key
from lehr_testing.campaigns import LR, campaign, ended, queued

STOP = STOP_S / 3600
PLAN = (RatePlan((0, 20, 200), (0.0, 1.0, 0.0)), ())
LIVE = {RunState.QUEUED, RunState.RUNNING}


@pytest.fixture(autouse=True)
def wishes(monkeypatch: pytest.MonkeyPatch) -> list[tuple[int, float]]:
    """Rungs and rates that are worth trying, first the first; else a random one that is held."""
    wanted: list[tuple[int, float]] = []

    def choose(
        question: Question, trials: Sequence[CampaignTrial], hours_left: float, free: int, seed: int
    ) -> Next:
        rng = random.Random(f"{seed} {len(trials)}")
        held = [n for n, rung in enumerate(question.rungs) if rung.hours <= hours_left]
        if not held and not wanted:
            return Next((), "", "the budget holds no further trial", None)
        rung, rate = wanted.pop(0) if wanted else (rng.choice(held), 10 ** rng.uniform(-4, -2))
        return Next((CampaignTrial(rung, (rate,), 0, None),), "it teaches most", None, None)

    monkeypatch.setattr(campaign_choice, "choose", choose)
    return wanted


def started(spec: SweepSpec, trials: Sequence[TrialState]) -> TrialState:
    return queued(spec, next_trial(spec, trials), len(trials) + 1)


def test_first_trial_reserves_a_tenth_where_nothing_tells_what_trials_cost(
    wishes: list[tuple[int, float]],
) -> None:
    spec = campaign()
    wishes.append((0, 1e-3))
    first = started(spec, [])
    assert first.limit_s == pytest.approx(PROBE * 3600, abs=1)
    assert next_trial(spec, [first]).point is None
    assert (
        decide(spec, [dataclasses.replace(first, state=RunState.RUNNING)], stopped=False).points
        == ()
    )
    done = ended(spec, first)
    wishes.append((0, 2e-3))
    assert started(spec, [done]).limit_s == math.ceil(MARGIN * done.hours * 3600)


def test_costs_of_other_rungs_follow_from_measured_steps_and_starts() -> None:
    spec = campaign()
    assert spec.campaign is not None
    rungs = spec.campaign.rungs
    trials = [
        ended(
            spec,
            TrialState(n, {**rungs[n].point, LR: 1e-3, "train.seed": 0}, f"r{n}", RunState.QUEUED),
        )
        for n in (0, 2)
    ]
    expected = [(15.0 + rung.flops / 2e11) / 3600 for rung in rungs]
    assert costs(spec.campaign, trials) == pytest.approx(expected)
    slow = dataclasses.replace(trials[0], state=RunState.FAILED, cause="time_limit", hours=0.3)
    assert (costs(spec.campaign, [slow]) or [])[0] == 0.3
    cut = dataclasses.replace(slow, steps_s=3600.0)
    assert (costs(spec.campaign, [cut]) or [])[0] == 1.0
    flat = [dataclasses.replace(trial, hours=0.1, steps_s=90.0) for trial in trials]
    cheap, most = costs(spec.campaign, flat), costs(spec.campaign, flat, at_most=True)
    assert cheap is not None
    assert most is not None
    assert most[:3] == cheap[:3]
    assert most[-1] == pytest.approx(0.075 + 0.025 * rungs[-1].flops / rungs[2].flops)
    assert most[-1] > cheap[-1]
    broken = dataclasses.replace(trials[0], state=RunState.FAILED, cause="node_lost")
    assert costs(spec.campaign, [broken]) is None


def test_walls_count_and_failures_of_machines_do_not() -> None:
    spec = campaign()
    assert spec.campaign is not None
    base = TrialState(
        1, {**spec.campaign.rungs[1].point, LR: 1e-3, "train.seed": 4}, "r", RunState.RUNNING
    )
    done = ended(spec, base)
    states = [
        base,
        done,
        dataclasses.replace(done, state=RunState.FAILED, cause="nan_loss"),
        dataclasses.replace(done, state=RunState.FAILED, cause="node_lost"),
        dataclasses.replace(done, state=RunState.CANCELLED),
    ]
    told = observed(spec, states)
    assert [one.loss for one in told] == [None, done.reports[-1].value, math.inf]
    assert {(one.rung, one.values, one.seed) for one in told} == {(1, (1e-3,), 4)}


def seen(base: TrialState, number: int, height: float, steps: int, **changes: Any) -> TrialState:
    """A trial whose loss falls like a power of its 200 steps, seen until one of them."""
    reports = [TrialReport(s, height * (1 + 2 * s**-0.5), s) for s in range(10, steps + 1, 10)]
    own = {"reports": tuple(reports), "total_steps": 200, "planned": PLAN, **changes}
    return dataclasses.replace(base, number=number, run_id=f"r{number}", **own)


def test_a_trial_that_ended_early_counts_as_its_forecast_with_its_doubt() -> None:
    spec = campaign()
    base = TrialState(
        1, {**spec.rung_points()[1], LR: 1e-3, "train.seed": 0}, "r1", RunState.PRUNED
    )
    cut = {"state": RunState.FAILED, "cause": "time_limit"}
    pruned, limited, short, ill, over = (
        seen(base, 1, 2.0, 120), seen(base, 2, 2.0, 120, **cut), seen(base, 3, 2.0, 20),
        seen(base, 4, math.nan, 120), seen(base, 5, 2.0, 200, **cut),
    )  # fmt: skip
    told = observed(spec, [pruned, limited, short, ill, over])
    assert [one.loss for one in told] == [pytest.approx(2.28, rel=0.02)] * 2 + [
        math.inf,
        over.reports[-1].value,
    ]
    assert [0.0 < one.doubt < 0.2 for one in told] == [True, True, False, False]
    again = seen(base, 6, 2.0, 120, state=RunState.QUEUED, cause="time_limit")
    assert [one.loss for one in observed(spec, [again])] == [None]


def test_a_hopeless_rate_is_pruned_by_trials_of_its_own_rung_only() -> None:
    spec = campaign()
    rungs = [{**point, LR: 1e-3, "train.seed": 0} for point in spec.rung_points()]
    runs = {"state": RunState.RUNNING, "attempt": 2, "living_hours": 0.01}
    far = seen(TrialState(1, rungs[0], "", RunState.RUNNING), 1, 3.0, 120, **runs)
    near = seen(TrialState(2, rungs[0], "", RunState.RUNNING), 2, 2.0, 120, **runs)
    other = seen(TrialState(3, rungs[1], "", RunState.COMPLETED), 3, 1.0, 200)
    [pruned] = decide(spec, [far, near, other], stopped=True).prune
    assert (pruned.run_id, pruned.attempt) == ("r1", 2)
    assert re.search(r"it would end at 3\.\d+, trial 2 at 2\.2", pruned.message)
    assert decide(spec, [far, other], stopped=True).prune == ()


def test_no_trial_is_tried_twice(wishes: list[tuple[int, float]]) -> None:
    spec, trials = campaign(), []
    for _ in range(3):
        wishes.append((0, 1.23456e-3))
        trials.append(ended(spec, started(spec, trials)))
    assert [trial.parameters["train.seed"] for trial in trials] == [0, 1, 2]
    assert {trial.parameters[LR] for trial in trials} == {1.23e-3}


def history(spec: SweepSpec, seed: int) -> Iterator[list[TrialState]]:
    """Trials that take any time up to their limit and a stop, and are lost and retried."""
    rng, trials = random.Random(seed), []
    while len(trials) < 200:
        made = decide(spec, trials, stopped=False)
        for pruned in made.prune:
            n = next(n for n, one in enumerate(trials) if one.run_id == pruned.run_id)
            used = trials[n].hours + (trials[n].living_hours or 0.0)
            gone = {"state": RunState.PRUNED, "hours": used, "living_hours": None}
            trials[n] = dataclasses.replace(trials[n], **gone)
        yield trials
        if made.stop is not None:
            trials = [
                dataclasses.replace(one, state=RunState.CANCELLED)
                if one.state is RunState.QUEUED
                else one
                for one in trials
            ]
        for point in made.points:
            limit_s = float(made.changes["time_limit_s"])
            number = len(trials) + 1
            trials.append(TrialState(number, point, f"r{number}", RunState.QUEUED, limit_s=limit_s))
        live = [
            n for n, one in enumerate(trials) if one.state in {RunState.QUEUED, RunState.RUNNING}
        ]
        if made.stop is not None and not live:
            return
        for n in live:
            trials[n] = _moved(spec, trials[n], rng)


def _moved(spec: SweepSpec, trial: TrialState, rng: random.Random) -> TrialState:
    if trial.state is RunState.QUEUED:
        run = {"state": RunState.RUNNING, "attempt": trial.attempt + 1, "living_hours": 0.0}
        return dataclasses.replace(trial, **run)
    if trial.living_hours is not None:
        used = rng.uniform(trial.living_hours, (trial.limit_s + STOP_S) / 3600)
        if rng.random() < 0.5:
            return dataclasses.replace(trial, living_hours=used)
        return dataclasses.replace(trial, hours=trial.hours + used, living_hours=None)
    if rng.random() < 0.4:
        return dataclasses.replace(trial, state=RunState.QUEUED)
    return ended(spec, trial, hours=trial.hours)


@pytest.mark.parametrize("seed", range(30))
def test_budget_is_never_exceeded_whatever_trials_take_and_retry(seed: int) -> None:
    spec = campaign(budget={"gpu_hours": 2.0}, max_concurrent=4)
    assert spec.campaign is not None
    for trials in history(spec, seed):
        book = ledger(spec.campaign, trials)
        assert book.spent <= 2.0 + 1e-9
        assert book.left >= -1e-9 or any(one.hours and one.state in LIVE for one in trials)
        assert len({point_key(one.parameters) for one in trials}) == len(trials)


def test_a_retry_that_the_budget_does_not_hold_is_stopped_by_name(
    wishes: list[tuple[int, float]],
) -> None:
    spec = campaign(budget={"gpu_hours": 0.1 + STOP})
    wishes.append((0, 1e-3))
    first = dataclasses.replace(started(spec, []), limit_s=300.0, attempt=2, hours=0.05)
    waits = decide(spec, [first], stopped=False)
    text = "it has used 0.05 GPU-hours, and the budget does not hold another attempt of it"
    assert waits.stop == f"trial 1: {text}"
    running = dataclasses.replace(first, state=RunState.RUNNING, living_hours=0.01)
    runs = decide(spec, [running], stopped=True)
    assert [(one.run_id, one.attempt, one.message) for one in runs.prune] == [("r1", 2, text)]
    assert runs.stop is None


def test_what_the_budget_does_not_hold_is_not_started(wishes: list[tuple[int, float]]) -> None:
    spec = campaign()
    wishes += [(0, 1e-3), (0, 2e-3)]
    done = ended(spec, started(spec, []), hours=0.45)
    chosen = next_trial(spec, [done])
    assert chosen.point is None
    assert chosen.stop == "The budget holds no further trial: 0.55 GPU-hours are left."


def test_the_same_record_gives_the_same_decision_after_a_restart() -> None:
    spec = campaign(budget={"gpu_hours": 2.0})
    for trials in history(spec, 3):
        assert decide(spec, list(trials), stopped=False) == decide(spec, trials, stopped=False)


def test_a_paused_campaign_starts_nothing(wishes: list[tuple[int, float]]) -> None:
    spec = campaign()
    wishes += [(0, 1e-3), (0, 2e-3), (0, 3e-3)]
    done = ended(spec, started(spec, []))
    second = dataclasses.replace(started(spec, [done]), state=RunState.RUNNING, living_hours=0.01)
    assert decide(spec, [done, second], stopped=False).points
    for changes in (
        {"state": RunState.PAUSED},
        {"desired": Desired.PAUSE},
        {"living_hours": None},  # Its attempt has ended, and may be followed by another.
    ):
        paused = dataclasses.replace(second, **changes)
        assert decide(spec, [done, paused], stopped=False).points == ()


def test_a_budget_under_one_trial_is_refused_with_the_figure() -> None:
    text = "budget is 1.00 GPU-hours; a trial of the smallest rung takes about 2.02 GPU-hours"
    with pytest.raises(SpecError, match=re.escape(text)):
        refuse(campaign(), [2.0, 3.0, 4.0, 5.0, 6.0, 7.0])
    refuse(campaign(), [0.5, 3.0, 4.0, 5.0, 6.0, 7.0])
    refuse(campaign(), [None] * 6)


def test_a_target_that_no_affordable_rung_reaches_is_refused() -> None:
    spec = campaign()
    assert spec.campaign is not None
    far = spec.campaign.target.model_copy(update={"parameters": 10**12})
    made = spec.model_copy(update={"campaign": spec.campaign.model_copy(update={"target": far})})
    with pytest.raises(SpecError, match="the largest rung that it holds has"):
        refuse(made, [0.5, 1, 2, 3, 4, 5])
