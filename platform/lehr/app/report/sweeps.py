"""The report of a sweep."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from lehr.analysis.significance import PLUS_MINUS
from lehr.app.report import parts
from lehr.app.report.document import Document, ReportFigure, Section, Table
from lehr.base import formats

if TYPE_CHECKING:
    from lehr.schemas.streams import AlertView, Series
    from lehr.schemas.sweeps import SweepDetail, SweepFigure, TrialView

DRAWN = 20
"""Trials whose curves a report draws, the best."""
LISTED = 1000
"""Trials that its table has, the best."""


def sweep_report(
    sweep: SweepDetail,
    figure: SweepFigure | None,
    curves: Mapping[str, Sequence[tuple[str, Series]]],
    provenance: Mapping[str, Any],
    diagnosed: Mapping[str, Sequence[AlertView]],
    *,
    made_at: float,
    version: str,
) -> Document:
    """Return the report.

    Args:
        sweep: with its trials.
        figure: its metric against a parameter; None where it has no trials yet.
        curves: by metric, each trial's label and points.
        provenance: of its runs.
        diagnosed: by the run's id, its explained alerts.
        made_at: seconds since the epoch.
        version: of Lehr.
    """
    trials = sorted(
        sweep.seeded, key=lambda trial: (trial.rank is None, trial.rank or 0, trial.number)
    )
    notes = list(figure.notes if figure is not None else sweep.notes)
    if sweep.noise is not None and not any(PLUS_MINUS in note for note in notes):
        notes.append(PLUS_MINUS)
    if sweep.note:
        notes.append(f"Notes: {sweep.note}")
    named = [(trial.run.name, trial.run) for trial in trials]
    drawn = [parts.curves(metric, found) for metric, found in curves.items() if found]
    evidence = (
        [ReportFigure(f"Against {figure.parameter}", figure.svg)] if figure is not None else []
    )
    sections = [
        Section("Result", facts=_facts(sweep), notes=notes, alerts=parts.alerts(named, diagnosed)),
        Section("Evidence", figures=evidence, tables=_points(sweep)),
        Section("Trials", tables=[_trials(sweep, trials)] if trials else [], empty="None yet."),
        Section("Curves", figures=drawn, empty="No trial has logged a metric yet."),
        parts.config(sweep.spec.get("run", {}), besides=sweep.parameters),
        *parts.provenance(provenance),
    ]
    headline = figure.verdict if figure is not None else "It has no trial yet."
    return parts.document("sweep", sweep, headline, sections, made_at=made_at, version=version)


def label(trial: TrialView) -> str:
    """Return a trial's parameters as a name."""
    return ", ".join(
        f"{path.rpartition('.')[2]} {formats.parameter(value, path)}"
        for path, value in trial.parameters.items()
    )


def _facts(sweep: SweepDetail) -> list[tuple[str, str]]:
    goal = "lower is better" if sweep.goal == "minimize" else "higher is better"
    where = sweep.compared_at_step
    return [
        ("metric", f"{sweep.metric}, {goal}"),
        ("method", f"{sweep.method} over {', '.join(sweep.parameters)}"),
        ("trials", ", ".join(f"{n} {state}" for state, n in sweep.counts.items())),
        ("compared at", f"step {where:,}" if where is not None else formats.NOTHING),
        ("best", parts.number(sweep.best_value)),
        *parts.cost(sweep.cost),
        ("submitted", parts.at(sweep.created_at)),
        ("ended", parts.at(sweep.ended_at) if sweep.state == "finished" else formats.NOTHING),
    ]


def _points(sweep: SweepDetail) -> list[Table]:
    """Return the points with several seeds: mean, spread between seeds, rank."""
    if not sweep.points:
        return []
    paths = list(sweep.points[0].parameters)
    ordered = sorted(sweep.points, key=lambda point: (point.rank is None, point.rank or 0))
    rows = [
        [
            str(point.rank or formats.NOTHING),
            *(formats.parameter(point.parameters[path], path) for path in paths),
            str(len(point.run_ids)),
            parts.number(point.mean),
            parts.number(point.spread),
        ]
        for point in ordered
    ]
    head = ["#", *formats.short_paths(paths), "seeds", "mean", "standard deviation"]
    return [
        Table(
            head,
            rows,
            "Points over their seeds",
            right=frozenset(range(len(paths) + 4)),
        )
    ]


def _trials(sweep: SweepDetail, trials: Sequence[TrialView]) -> Table:
    """Return what differs between the trials, with their results, best first."""
    shown = trials[:LISTED]
    rows = [
        [
            str(trial.rank or formats.NOTHING),
            *(formats.parameter(trial.parameters.get(path), path) for path in sweep.parameters),
            parts.number(trial.compared_value),
            parts.number(trial.value),
            f"{trial.run.step:,}" if trial.run.step is not None else formats.NOTHING,
            trial.run.state + (f": {trial.run.reason}" if trial.run.reason else ""),
            trial.run.id,
        ]
        for trial in shown
    ]
    head = [
        "#",
        *formats.short_paths(sweep.parameters),
        "compared",
        "newest",
        "step",
        "state",
        "run",
    ]
    first = len(sweep.parameters) + 1
    best = next((i for i, trial in enumerate(shown) if trial.best), None)
    left = sweep.trials_total + len(sweep.repetitions) - len(shown)
    note = f"and {left:,} more" if left else ""
    return Table(head, rows, right=frozenset(range(first + 3)), best=best, note=note)
