"""Reports over a real store: what they have in each state, and that nothing in them is alive."""

from __future__ import annotations

import math

import pytest

from lehr.app.report import reports
from lehr.app.services.archive import delete_run
from lehr.app.services.context import Context
from lehr.app.services.report import report_rollout, report_run, report_sweep
from lehr.control.lifecycle import RunState
from lehr.specs import RunSpec, SweepSpec
from lehr_testing import seeding
from lehr_testing.html import PageCheck
from lehr_testing.seeded_rollouts import Seeded

HOSTILE = "</td><script>alert(1)</script><img src=x onerror=alert(2)>\"'&{{ 7*7 }}"


def changed(spec: RunSpec, **fields: object) -> RunSpec:
    return RunSpec.model_validate({**spec.model_dump(mode="json"), **fields})


def page(html: str) -> str:
    """Return the text of a page that has no fault."""
    found = PageCheck(html)
    assert found.faults == []
    assert "url(" not in html
    assert "@import" not in html
    assert len(html) < 1_000_000
    return " ".join(found.text)


def test_a_run_has_its_result_curves_checkpoints_cost_and_config(context: Context) -> None:
    run = context.store.runs.create(
        changed(seeding.run_spec("base", steps=200), env={"API_KEY": "a-secret"}, notes="why"),
        actor="user",
        provenance={"host": "h1", "git": {"commit": "abc123", "dirty": True, "diff": "+line"}},
    )
    attempt = seeding.start(context.store, run)
    attempt.train(range(1, 201))
    attempt.checkpoint(200, val_loss=4.0, reason="last")
    attempt.end(RunState.COMPLETED, 200)
    html = report_run(context, context.store.runs.get(run.id))
    text = page(html)
    assert html.count('<svg class="figure"') >= 4
    value = context.store.series.read(run.id, "val/loss", exact=True).y[-1]
    assert f"{value:.6g}" in text
    for expected in ("step 200 of 200", "GPU-hours", "train.optimizer.lr", "abc123", "+line"):
        assert expected in text
    assert "Notes: why" in text
    assert "4 " in text
    assert "a-secret" not in html
    assert "(hidden)" in text


def test_runs_without_a_step_failed_and_diverged_have_a_report(context: Context) -> None:
    empty = context.store.runs.create(seeding.run_spec("empty"))
    text = page(report_run(context, empty))
    assert "It has logged no metric yet." in text
    assert "It has not started yet." in text
    failed = context.store.runs.create(seeding.run_spec("failed"))
    attempt = seeding.start(context.store, failed)
    attempt.train(range(1, 20))
    attempt.evaluate(19, math.nan)
    attempt.end(RunState.FAILED, 19, cause="nan_loss", message="loss became NaN at step 19")
    text = page(report_run(context, context.store.runs.get(failed.id)))
    assert "failed: loss became NaN at step 19" in text
    assert "nan" in text


def test_alerts_are_explained_in_the_reports_of_a_run_and_of_its_sweep(context: Context) -> None:
    sweep, [run, _] = seeding.create_sweep(context.store, seeding.lr_sweep("g", [2e-2, 1e-3]))
    attempt = seeding.start(context.store, run)
    attempt.train(range(1, 300), logs=False)
    attempt.flush()
    context.presenter.runs.diagnose(context.store.runs.get(run.id))
    for html in (
        report_run(context, context.store.runs.get(run.id)),
        report_sweep(context, context.store.sweeps.get(sweep.id)),
    ):
        text = page(html)
        assert "nan, since step 191" in text
        assert "the loss became nan at step 191" in text
        assert "certain: the records prove it" in text
        assert "a step that was too large, or an overflow of 16-bit numbers" in text
        assert "A half to a tenth of the learning rate" in text


def test_a_deleted_run_has_its_record(context: Context) -> None:
    run = context.store.runs.create(seeding.run_spec("gone"))
    attempt = seeding.start(context.store, run)
    attempt.train(range(1, 20))
    attempt.end(RunState.FAILED, 19, cause="error", message="stopped at step 19")
    delete_run(context, context.store.runs.get(run.id))
    text = page(report_run(context, context.store.runs.get(run.id)))
    assert "It has logged no metric yet." not in text
    assert "Its metrics were deleted." in text
    assert "stopped at step 19" in text
    assert "train.optimizer.lr" in text


def test_every_text_of_users_is_escaped(context: Context) -> None:
    run = context.store.runs.create(
        changed(seeding.run_spec("r"), notes=HOSTILE),
        provenance={"command": [HOSTILE], HOSTILE: HOSTILE, "git": {"diff": HOSTILE}},
    )
    attempt = seeding.start(context.store, run, node=HOSTILE)
    attempt.train(range(1, 5))
    attempt.end(RunState.FAILED, 4, cause="error", message=HOSTILE)
    context.store.runs.set_tags(run.id, [HOSTILE])
    html = report_run(context, context.store.runs.get(run.id))
    text = page(html)
    assert text.count(HOSTILE) >= 5
    before = text.split(HOSTILE)[0][-20:]
    assert "49" not in before.replace(run.id, "")  # The random id may contain it.


def test_a_sweep_has_its_verdict_significance_trials_and_differences(context: Context) -> None:
    rates = [1e-4, 3e-4, 1e-3, 2e-3]
    spec = seeding.lr_sweep("grid", rates, steps=200, **{"train.seed": {"values": [0, 1]}})
    sweep, runs = seeding.create_sweep(context.store, spec)
    for n, run in enumerate(runs):
        attempt = seeding.start(context.store, run)
        attempt.train(range(1, 201), logs=False)
        if n == len(runs) - 1:
            attempt.end(RunState.FAILED, 200, cause="nan_loss", message="loss became NaN")
        else:
            attempt.end(RunState.COMPLETED, 200)
    html = report_sweep(context, context.store.sweeps.get(sweep.id))
    text = page(html)
    detail = context.presenter.sweeps.detail(context.store.sweeps.get(sweep.id))
    for trial in detail.trials:
        assert f"{trial.compared_value:.6g}" in text
    assert "it is the highest that was tried" in text
    for note in detail.notes:
        if "95 %" not in note and "at the edge" not in note:  # The verdict says these.
            assert note in text
    assert "± is half of the 95 % interval" in text
    assert "Points over their seeds" in text
    assert "GPU-hours" in text
    # One circle for each trial, and the ring of the best.
    assert html.count("<circle") >= len(runs)


def test_a_sweep_that_waits_and_one_without_numbers_have_a_report(context: Context) -> None:
    waiting, _ = seeding.create_sweep(context.store, seeding.lr_sweep("waits", [1e-3, 1e-2]))
    assert "No trial has a val/loss to compare yet." in page(report_sweep(context, waiting))
    names = {"train.optimizer.name": {"values": ["adamw", "muon"]}}
    spec = seeding.lr_sweep("words", [1e-3]).model_dump(mode="json", exclude_unset=True)
    made, runs = seeding.create_sweep(
        context.store, SweepSpec.model_validate({**spec, "parameters": names})
    )
    for run, loss in zip(runs, (3.0, 2.0), strict=True):
        attempt = seeding.start(context.store, run)
        attempt.evaluate(10, loss)
        attempt.end(RunState.COMPLETED, 10)
    text = page(report_sweep(context, made))
    assert "Best optimizer.name muon" in text
    # Nothing else of the sweep says how much the difference is worth.
    assert "optimizer.name muon looks better than optimizer.name adamw by 1 (one seed each)" in text


def test_a_long_sweep_has_its_first_and_best_trials(
    context: Context, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(reports, "LISTED", 3)
    rates = [1e-4 * (n + 1) for n in range(30)]
    sweep, runs = seeding.create_sweep(context.store, seeding.lr_sweep("long", rates))
    attempt = seeding.start(context.store, runs[-1])
    attempt.evaluate(10, 2.0)
    attempt.flush()
    text = page(report_sweep(context, sweep))
    assert runs[-1].id in text
    assert "and 27 more" in text


def test_a_rollout_has_its_stages_and_gates(context: Context) -> None:
    seeded = Seeded(context.store, "llama-1b")
    seeded.passed("cpu")
    seeded.stopped("one_gpu")
    text = page(report_rollout(context, context.store.rollouts.get(seeded.rollout.id)))
    assert "1 of 4 stages passed." in text
    detail = context.presenter.rollouts.detail(context.store.rollouts.get(seeded.rollout.id))
    for stage in detail.stages:
        for gate in stage.gates:
            assert gate.expected in text
