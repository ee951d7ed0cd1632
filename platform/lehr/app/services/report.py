"""Write a report of a run, sweep or rollout: one HTML page that needs nothing else."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from contextlib import suppress
from dataclasses import replace
from typing import Any

from lehr.analysis.sweep_figure import drawn_sweep
from lehr.app import presenters
from lehr.app.presenters.series import series_view
from lehr.app.report import reports
from lehr.app.report.document import ReportFigure, Section, Table, render
from lehr.app.report.reports import CURVES, LOSSES, rollout_report, run_report, sweep_report
from lehr.app.services.campaigns import campaign_view
from lehr.app.services.context import Context
from lehr.app.services.law import law_of
from lehr.base import formats
from lehr.errors import NotFound
from lehr.schemas.streams import AlertView, Series
from lehr.store.tables import RolloutRow, RunRow, SweepRow

_POINTS = 300  # Points of a curve of a run; those of several runs share them.
_FEWEST = 60
_STEPS = 24  # Of the course of a campaign: each is a fit of up to half a second.


def report_of(context: Context, ref: str) -> tuple[RunRow | SweepRow | RolloutRow, str]:
    """Return the run, sweep or rollout of that id or name, and its page."""
    with suppress(NotFound):
        return (run := context.store.runs.find(ref)), report_run(context, run)
    with suppress(NotFound):
        return (sweep := context.store.sweeps.find(ref)), report_sweep(context, sweep)
    return (rollout := context.store.rollouts.find(ref)), report_rollout(context, rollout)


def report_run(context: Context, run: RunRow) -> str:
    curves = _curves(context, [(run.name, run.id)], CURVES)
    series = {name: found[0][1] for name, found in curves.items() if found}
    document = run_report(
        context.presenter.runs.detail(run),
        series,
        presenters.checkpoints(context.store, run),
        deleted=context.store.runs.is_deleted(run.id),
    )
    return render(document, context.store.clock())


def report_sweep(context: Context, sweep: SweepRow) -> str:
    """Return the page of a sweep, whatever its state. Of a long one it has the first and best
    trials.
    """
    presenter = context.presenter.sweeps
    detail = presenter.detail(sweep, limit=reports.LISTED)
    listed = {trial.number: trial for trial in [*detail.trials, *detail.best_trials]}
    detail = detail.model_copy(update={"trials": list(listed.values())})
    campaign = _campaign(context, sweep) if detail.method == "campaign" else None
    figure = drawn_sweep(presenter.outline(sweep), None) if listed and not campaign else None
    ordered = sorted(detail.trials, key=lambda trial: trial.place)
    # In the sweep's order, so that neighbours in the legend are neighbours in the grid.
    drawn = sorted(ordered[: reports.DRAWN], key=lambda trial: trial.number)
    labels = [(formats.point(trial.parameters), trial.run.id) for trial in drawn]
    document = sweep_report(
        detail,
        figure,
        _curves(context, labels, dict.fromkeys([sweep.stored.metric, "train/loss"])),
        _provenance(context, [trial.run.id for trial in drawn]),
        _diagnosed(context, [trial.run.id for trial in detail.seeded]),
    )
    if campaign is not None:
        document.sections[:2] = [*campaign, *document.sections[:1]]
        document = replace(document, headline=campaign[0].facts[0][1])
    return render(document, context.store.clock())


def _campaign(context: Context, sweep: SweepRow) -> list[Section]:
    view = campaign_view(context, sweep, steps=_STEPS)
    head, *rows = view.rung_table
    figures = [ReportFigure(f"{title}, as it narrows", svg) for title, svg in view.figures.items()]
    table = Table(head, rows, "By rung", right=frozenset({1, 3, 4, 5}))
    sections = [Section("Campaign", facts=view.facts, figures=figures, tables=[table])]
    if view.answer is not None:
        law = law_of(context, [sweep.id])
        figures = [ReportFigure(*each) for each in law.figures.items()]
        sections.append(Section("The law", facts=law.facts, figures=figures))
    return sections


def report_rollout(context: Context, rollout: RolloutRow) -> str:
    detail = context.presenter.rollouts.detail(rollout)
    runs = [
        (f"{stage.title}, {one.role}", one.run.id) for stage in detail.stages for one in stage.runs
    ]
    document = rollout_report(
        detail,
        _curves(context, runs, LOSSES),
        _provenance(context, [run_id for _, run_id in runs]),
        _diagnosed(context, [run_id for _, run_id in runs]),
    )
    return render(document, context.store.clock())


def _curves(
    context: Context, runs: Sequence[tuple[str, str]], metrics: Iterable[str]
) -> dict[str, list[tuple[str, Series]]]:
    points = max(_FEWEST, _POINTS * 4 // max(len(runs), 4))
    found = {}
    for metric in metrics:
        read = context.store.series.read_many([run_id for _, run_id in runs], metric, points=points)
        known = {one.run_id: series_view(one) for one in read if one.x}
        found[metric] = [(label, known[run_id]) for label, run_id in runs if run_id in known]
    return found


def _provenance(context: Context, run_ids: Sequence[str]) -> dict[str, Any]:
    """Return the provenance of the first of these runs; those of one launch share it."""
    rows = context.store.runs.by_ids(run_ids[:1])
    return context.store.runs.provenance(rows[0]) if rows else {}


def _diagnosed(context: Context, run_ids: Sequence[str]) -> dict[str, list[AlertView]]:
    return context.presenter.runs.known_alerts(context.store.runs.by_ids(run_ids))
