"""Campaigns by their services: launched, shown, extended, cancelled, and the rollout at the end."""

from __future__ import annotations

import html
import re
from pathlib import Path
from typing import Any

import pytest

from lehr.analysis.laws.question import CampaignAnswer
from lehr.app.services.campaigns import campaign_view, rollout_yaml
from lehr.app.services.context import Context, once
from lehr.app.services.extend import extend_sweep
from lehr.app.services.law import law_of
from lehr.app.services.report import report_sweep
from lehr.app.services.requests import cancel_sweep
from lehr.app.services.submit import launch_sweep
from lehr.cluster.group_loader import campaign_trials
from lehr.control.sweeps import decide
from lehr.errors import NotFound, SpecError, UserError
from lehr.specs import RolloutSpec, SweepSpec, load_spec, stages
from lehr.store.tables import SweepRow
from lehr_testing.api import SWEEP_SPEC
from lehr_testing.campaigns import LR, TARGET, recorded

SPEC: dict[str, Any] = {"kind": "campaign", "name": "c", "target": TARGET}


def launched(context: Context, **changes: Any) -> SweepRow:
    spec = {**SPEC, "budget": {"gpu_hours": 1}, **changes}
    operation = launch_sweep(context, spec, {}, {"command": ["test"]})
    return context.store.sweeps.get(once(context.store, None, operation, status=201).body["id"])


def test_launch_records_the_first_trial_with_its_reason_and_reservation(context: Context) -> None:
    sweep = launched(context)
    [run] = context.store.sweeps.runs(sweep.id)
    assert run.spec["time_limit_s"] == 360
    assert run.note
    assert run.spec["train"]["model"]["hidden_size"] < 128
    assert context.store.sweeps.unended() == [sweep.id]
    view = campaign_view(context, sweep)
    assert (view.name, view.stopped, view.answer, view.rollout) == ("c", None, None, None)
    [trial] = view.trials
    assert (trial.number, trial.run_id, trial.state, trial.rung) == (1, run.id, "queued", 0)
    assert trial.why == run.note
    assert view.budget.reserved == trial.reserved == pytest.approx(420 / 3600)
    assert view.budget.left == pytest.approx(1 - 420 / 3600)
    assert view.decide[LR].role == "rate"
    assert context.sweep(sweep.id).state == "waiting"


def test_other_sweeps_are_no_campaigns(context: Context) -> None:
    operation = launch_sweep(context, SWEEP_SPEC, {}, {})
    made = once(context.store, None, operation, status=201).body["id"]
    with pytest.raises(NotFound, match="is a grid sweep, not a campaign"):
        campaign_view(context, context.store.sweeps.get(made))


def test_a_budget_under_one_trial_records_nothing(context: Context) -> None:
    with pytest.raises(SpecError, match="a trial of the smallest rung takes"):
        launched(context, budget={"gpu_hours": 0.01})
    assert context.store.sweeps.page().items == []


def test_extension_adds_to_the_budget_and_reopens_the_campaign(context: Context) -> None:
    sweep = launched(context)
    context.store.sweep_progress.stop(sweep.id, "the budget is used", actor="sweep")
    once(context.store, None, extend_sweep(context, sweep, gpu_hours=2.5), status=200)
    again = context.store.sweeps.get(sweep.id)
    assert (again.spec["campaign"]["gpu_hours"], again.stopped) == (3.5, None)
    with pytest.raises(UserError, match="trials cannot be added to c: its method is campaign"):
        once(context.store, None, extend_sweep(context, again, trials=3), status=200)


def test_a_cancelled_campaign_adds_no_trial(context: Context) -> None:
    sweep = launched(context)
    view = cancel_sweep(context, sweep)
    assert (view.stopped, view.counts) == ("cancelled", {"cancelled": 1})
    spec = SweepSpec.model_validate(sweep.spec)
    trials = campaign_trials(context.store, spec, sweep.id)
    assert decide(spec, trials, stopped=True).points == ()


def test_recommended_rollout_is_one_that_can_be_launched(context: Context, tmp_path: Path) -> None:
    sweep = launched(context, decide=[LR, "train.batch.sequences"])
    spec = SweepSpec.model_validate(sweep.spec)
    answer = CampaignAnswer(
        (3.14159e-3, 4000.0), (((2e-3, 4e-3), (1e-3, 6e-3)), ((2e3, 6e3), (1e3, 9e3))), 0.004, 2.5,
        (2.4, 2.6), (2.3, 2.7), "Outside of what was measured: tokens 8 times.",
    )  # fmt: skip
    text = rollout_yaml(context, spec, answer, [])
    assert "# train.optimizer.lr: 0.00314, 0.002 to 0.004 with 68 %." in text
    assert "# val/loss at the end: 2.500, 2.4 to 2.6 with 68 %, 2.3 to 2.7 with 95 %." in text
    assert "# Outside of what was measured: tokens 8 times." in text
    file = tmp_path / "big.yaml"
    file.write_text(text)
    made = load_spec(file)
    assert isinstance(made, RolloutSpec)
    assert (made.run.own.optimizer.lr, made.run.own.batch.sequences) == (3.14e-3, 31)
    assert made.run.alerts.actions == {"nan": "stop", "diverging": "stop"}
    assert [stage.name for stage in stages(made)] == ["cpu", "one_gpu", "all"]


def test_a_campaign_is_told_in_words_with_its_law_and_its_lessons(context: Context) -> None:
    sweep = recorded(context.store, budget={"dollars": 5, "price": 2.5}, published=False)
    facts = dict(campaign_view(context, sweep).facts)
    answer, cost = facts["answer"].split("; estimated for the run itself: ")
    assert re.fullmatch(r"val/loss \d\.\d{3} ± 0\.\d+, lr \S+ \(\S+ to \S+\) with 68 %", answer)
    assert re.match(r".*GPU-hours, .*\$[\d.]+\. Outside of what was measured: param", cost)
    assert "of 2.00 GPU-hours; 0.00 reserved for trials, " in facts["spent"]
    law = law_of(context, [sweep.id])
    assert (law.target.name, law.target.tokens) == ("the target", 4000 * 2048)
    [fact] = [text for name, text in law.facts if name == "published runs"]
    assert fact == "do not count"
    page = html.unescape(report_sweep(context, sweep))
    assert all(f"<dd>{text}</dd>" in page for text in (*facts.values(), *dict(law.facts).values()))
    assert f'<p class="headline">{facts["answer"]}' in page
    assert page.count("as it narrows</title>") == 2
    assert "against" not in page.lower()


def test_trials_of_a_campaign_are_compared_within_their_rungs_only(context: Context) -> None:
    sweep = recorded(context.store)
    detail = context.sweep(sweep.id)
    assert (detail.best_run_id, detail.best_trials, detail.state) == (None, [], "running")
    assert {trial.rank for trial in detail.trials} == {None}
    view = campaign_view(context, sweep, steps=4)
    head, *rows = view.rung_table
    assert head == ["rung", "trials", "tried", "best", "val/loss", "GPU-hours"]
    assert [row[1:4] for row in rows[2:4]] == [
        ["3", "1.0e-3, 3.0e-3, 9.0e-3", "3.0e-3"],
        ["0", "", ""],
    ]
    assert rows[0][4] == f"{min(trial.loss for trial in view.trials if trial.rung == 0):.4g}"
    assert [step.trials for step in view.course] == [3, 5, 7, 9]
    assert view.answer is not None
    assert view.course[-1].loss == view.answer.loss
    low, high = zip(*(step.loss.likely for step in view.course[::3]), strict=True)
    assert high[1] - low[1] < high[0] - low[0]
    assert campaign_view(context, sweep).course == []
