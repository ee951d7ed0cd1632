"""What a campaign tries next, on trainings that follow a known law."""

from __future__ import annotations

import math
import runpy
from collections.abc import Callable
from dataclasses import replace

import numpy as np
import pytest

from lehr.analysis.laws.question import CampaignTrial, Field, Next, Question, Rung
from lehr.analysis.lr_rules import Setting
from lehr.control import campaign_choice
from lehr.control.campaign_choice import choose
from lehr_testing.paths import TESTS

TARGET = Setting(width=1024, depth=8, non_embedding=1e8, batch=2.5e5, tokens=4e9)
FIELD = Field("train.optimizer.lr", "rate", 1e-4, 3e-2, log=True)
Loss = Callable[[Rung, float], float]


def rung(factor: float, tokens: float, hours: float) -> Rung:
    size = TARGET.non_embedding / factor**2
    setting = Setting(
        TARGET.width / factor, TARGET.depth, size, TARGET.batch * tokens**0.57, 4e9 * tokens
    )
    return Rung(f"{size / 1e6:.0f}M", setting, hours)


RUNGS = (rung(4, 0.1, 0.5), rung(2.8, 0.2, 2.0), rung(2, 0.4, 8.0))
QUESTION = Question(TARGET, (FIELD,), RUNGS, regret=0.003, loss_within=0.12)


def best_rate(setting: Setting) -> float:
    return 2e-3 * (TARGET.width / setting.width) * (setting.tokens / TARGET.tokens) ** 0.2


def loss(rung: Rung, rate: float) -> float:
    size, tokens = (
        getattr(rung.setting, name) / getattr(TARGET, name) for name in ("non_embedding", "tokens")
    )
    over = math.log2(rate / best_rate(rung.setting))
    return 2.2 + 0.5 * size**-0.3 + 0.4 * tokens**-0.3 + 0.015 * over**2


def course(
    question: Question, budget: float, loss: Loss = loss, free: int = 2
) -> tuple[list[CampaignTrial], Next]:
    """Return all trials, and the last decision; each is checked to be within what was free."""
    trials: list[CampaignTrial] = []
    left = budget
    while True:
        step = choose(question, trials, left, free)
        if not step.trials:
            return trials, step
        assert step.stop is None
        assert len(step.trials) <= free
        cost = sum(question.rungs[trial.rung].hours for trial in step.trials)
        assert cost <= left
        left -= cost
        trials += [
            replace(trial, loss=loss(question.rungs[trial.rung], trial.values[0]))
            for trial in step.trials
        ]


def test_starts_small_climbs_and_stops_when_the_answer_is_good_enough() -> None:
    trials, last = course(QUESTION, 60.0)
    assert [trial.rung for trial in trials[:5]] == [0] * 5
    first = np.log2([trial.values[0] for trial in trials[:5]])
    assert np.ptp(first) > 3
    assert len(set(first)) >= 4
    assert max(trial.rung for trial in trials) > 0
    assert last.stop is not None
    assert last.stop.startswith("Good enough")
    assert last.answer is not None
    assert last.answer.regret <= QUESTION.regret
    low, high = last.answer.intervals[0][1]
    assert low <= best_rate(TARGET) <= high
    low, high = last.answer.sure
    assert low <= 3.1 <= high


@pytest.mark.parametrize("spent", [0.0, 3.0])
def test_budget_that_holds_no_further_trial_starts_none(spent: float) -> None:
    trials = course(QUESTION, spent)[0] if spent else []
    step = choose(QUESTION, trials, 0.4, 2)
    assert step.trials == ()
    assert (step.answer is None) is not bool(spent)
    assert step.stop is not None
    assert "0.4 GPU-hours are left, and the smallest needs 0.5" in step.stop


def test_stops_where_nothing_more_would_help() -> None:
    """Only the smallest size may be tried: what is not known of the target stays unknown."""
    question = replace(QUESTION, rungs=RUNGS[:1], regret=0.0, loss_within=None)
    trials, last = course(question, 200.0)
    assert 5 <= len(trials) < 100
    assert last.stop is not None
    assert last.stop.startswith("Nothing more would help: no trials of the")


def test_all_diverged_goes_lower_and_then_stops_with_advice() -> None:
    trials, last = course(QUESTION, 60.0, lambda _rung, _rate: math.inf)
    assert len(trials) == 10
    rates = [trial.values[0] for trial in trials]
    assert max(rates[5:]) < max(rates[:5])
    assert min(rates[5:]) < min(rates[:5])
    assert last.stop is not None
    assert last.stop.startswith("All 10 trials diverged. Lower the range of what is decided")
    assert last.answer is None


def test_running_trials_are_not_repeated_and_count() -> None:
    trials, _ = course(QUESTION, 3.0)
    question = replace(QUESTION, regret=0.0, loss_within=None)
    running: list[CampaignTrial] = []
    for _ in range(3):
        step = choose(question, [*trials, *running], 50.0, 1)
        running += step.trials
    assert len({(trial.rung, trial.values) for trial in running}) == 3
    assert choose(question, [*trials, *running], 50.0, 0).trials == ()


def test_trials_are_within_the_hours_left_and_use_them() -> None:
    trials, _ = course(QUESTION, 3.0)
    question = replace(QUESTION, regret=0.0, loss_within=None)
    costs = {}
    for hours in (2.4, 4.4, 17.0):
        step = choose(question, trials, hours, 8)
        costs[hours] = sum(RUNGS[trial.rung].hours for trial in step.trials)
        assert 0 < costs[hours] <= hours
    assert max(costs.values()) > 8


def test_only_places_of_a_table_are_tried_and_none_twice() -> None:
    rates = tuple((1e-3 * 2.0**k,) for k in range(4))
    question = replace(QUESTION, rungs=(replace(RUNGS[0], points=rates),), regret=0.0)
    trials, last = course(question, 60.0)
    assert sorted(trial.values for trial in trials) == list(rates)
    assert last.stop is not None


def test_same_history_gives_the_same_choice() -> None:
    trials, _ = course(QUESTION, 4.0)
    first = choose(QUESTION, trials, 9.0, 2)
    campaign_choice._choose.cache_clear()
    assert choose(QUESTION, trials, 9.0, 2) == first
    assert first.trials != ()


@pytest.mark.parametrize(
    "wrong", [replace(QUESTION, fields=()), replace(QUESTION, rungs=RUNGS[::-1])]
)
def test_question_without_a_field_or_with_rungs_out_of_order_is_refused(wrong: Question) -> None:
    with pytest.raises(ValueError, match="needs fields, and rungs by ascending hours"):
        choose(wrong, [], 10.0, 1)


def test_published_runs_cost_less_regret_than_a_grid_of_the_same_flops() -> None:
    """Rates for 537M from 215M and 268M, at three batches; 0.5e-3 instead of 1.1e-3."""
    bench = runpy.run_path(str(TESTS / "bench/campaign.py"))
    tables = bench["tables"](bench["DATA"])
    cases = [case for case in bench["cases"](tables) if case.decide == "rate"]
    some = [case for case in cases if case.target.setting.tokens == 50e9]
    regrets = {}
    for way in ("grid", "campaign"):
        values = [bench["WAYS"][way](case, 16 * case.rungs[0].cost).values for case in some]
        regrets[way] = np.mean(
            [
                case.target.loss(*each) - case.target.best[0]
                for case, each in zip(some, values, strict=True)
            ]
        )
    assert len(some) == 3
    assert regrets["campaign"] < regrets["grid"]


def test_start_is_of_so_many_trials_whichever_rung_is_the_smallest() -> None:
    trials, _ = course(QUESTION, 2.6)
    assert len(trials) == 5
    other = replace(QUESTION, rungs=(RUNGS[1], *RUNGS[2:]), regret=0.0)
    moved = [replace(trial, rung=1) for trial in trials]
    step = choose(other, moved, 50.0, 5)
    assert not step.why.startswith("It starts with")
