"""The reports of a run, a sweep and a rollout."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from lehr.analysis.significance import PLUS_MINUS
from lehr.app.report import document
from lehr.app.report.document import Document, ReportFigure, Section, Table
from lehr.base import formats
from lehr.schemas.checkpoints import CheckpointView
from lehr.schemas.rollouts import RolloutDetail, StageView
from lehr.schemas.runs import RunDetail
from lehr.schemas.streams import AlertView, Series
from lehr.schemas.sweeps import SweepDetail, SweepFigure, TrialView

LOSSES = ("train/loss", "val/loss")
CURVES = (
    *LOSSES, "val/average/loss", "train/lr", "train/grad_norm", "tokens_per_s", "mfu",
    "memory/peak_bytes",
)  # fmt: skip
"""Metrics that a report draws, where a run has them."""


def run_report(
    run: RunDetail,
    series: Mapping[str, Series],
    checkpoints: Sequence[CheckpointView],
    *,
    deleted: bool,
) -> Document:
    """Return the report, with those of ``CURVES`` that the run has."""
    alerts = document.alerts([(run.name, run)], {run.id: run.diagnosis})
    sections = [
        Section("Result", facts=_run_facts(run), alerts=alerts, notes=_notes(run)),
        Section(
            "Curves",
            figures=[
                document.curves(name, [(run.name, one)], stages=run.stages)
                for name, one in series.items()
            ],
            empty="Its metrics were deleted." if deleted else "It has logged no metric yet.",
        ),
        document.checkpoints(checkpoints),
        _attempts(run),
        document.config(run.spec),
        *document.provenance(run.provenance),
    ]
    headline = _headline(run)
    return Document("run", run, headline, sections)


def _headline(run: RunDetail) -> str:
    done = "no step yet" if run.step is None else formats.steps(run.step, run.total_steps)
    losses = [
        f"{name} {document.number(run.latest[name].value)} at step {run.latest[name].step:,}"
        for name in LOSSES
        if name in run.latest
    ]
    return f"{'; '.join([done, *losses])}."


def _notes(run: RunDetail) -> list[str]:
    found = [f"{run.state}: {run.reason}"] if run.reason else []
    if run.pending_reason:
        found.append(f"It waits: {run.pending_reason}")
    return [*found, f"Notes: {run.note}"] if run.note else found


def _run_facts(run: RunDetail) -> list[tuple[str, str]]:
    counts = [
        ("tokens trained on", formats.millions(run.tokens)),
        *([] if run.stages else [("tokens of a step", f"{run.tokens_per_step:,}")]),
    ]
    facts = [
        ("parameters", formats.millions(run.parameters)),
        # A program need not declare its tokens: then each step counts as one.
        *(counts if run.tokens_per_step > 1 else []),
        *((f"stage {stage.name}", stage.text) for stage in run.stages),
        ("GPUs", f"{run.gpus} on {run.nodes} {'node' if run.nodes == 1 else 'nodes'}"),
        ("device", run.device or formats.NOTHING),
        *document.cost(run.cost),
        ("submitted", document.at(run.created_at)),
        ("started", document.at(run.started_at)),
        ("ended", document.at(run.ended_at)),
    ]
    facts += [
        (name, f"{document.metric(name, latest.value)} at step {latest.step:,}")
        for name, latest in run.latest.items()
    ]
    if run.forked_from:
        facts.append(("forked from", run.forked_from))
    return facts


def _attempts(run: RunDetail) -> Section:
    rows = [
        [
            str(one.number),
            document.at(one.created_at),
            document.at(one.exited_at),
            ", ".join(f"{gpu.node}:{gpu.gpu}" for gpu in one.placement),
            one.outcome or ("running" if one.open else formats.NOTHING),
            one.message or one.cause or "",
        ]
        for one in run.attempts
    ]
    head = ["", "started", "ended", "GPUs", "outcome", "message"]
    return Section(
        "Attempts", tables=[Table(head, rows)] if rows else [], empty="It has not started yet."
    )


DRAWN = 20  # Trials whose curves a report draws, the best.
LISTED = 1000  # Trials that its table has, the best.


def sweep_report(
    sweep: SweepDetail,
    figure: SweepFigure | None,
    curves: Mapping[str, Sequence[tuple[str, Series]]],
    provenance: Mapping[str, Any],
    diagnosed: Mapping[str, Sequence[AlertView]],
) -> Document:
    """Return the report. ``figure``: None where the sweep has no trials yet; ``curves``: by metric,
    each trial's label and points.
    """
    trials = sorted(sweep.seeded, key=lambda trial: trial.place)
    notes = list(figure.notes if figure is not None else sweep.notes)
    if sweep.noise is not None and not any(PLUS_MINUS in note for note in notes):
        notes.append(PLUS_MINUS)
    if sweep.note:
        notes.append(f"Notes: {sweep.note}")
    named = [(trial.run.name, trial.run) for trial in trials]
    # As on its page.
    by = figure.parameter if figure is not None else ""
    every = [*sweep.trials, *sweep.repetitions]
    values = {trial.run.id: trial.parameters.get(by) for trial in every}
    drawn = [
        document.curves(metric, found, coloured=values) for metric, found in curves.items() if found
    ]
    evidence = (
        [ReportFigure(f"Against {figure.parameter}", figure.svg)] if figure is not None else []
    )
    sections = [
        Section(
            "Result",
            facts=_sweep_facts(sweep),
            notes=notes,
            alerts=document.alerts(named, diagnosed),
        ),
        Section("Evidence", figures=evidence, tables=_points(sweep)),
        Section("Trials", tables=[_trials(sweep, trials)] if trials else [], empty="None yet."),
        Section("Curves", figures=drawn, empty="No trial has logged a metric yet."),
        document.config(sweep.spec.get("run", {}), besides=sweep.parameters),
        *document.provenance(provenance),
    ]
    headline = figure.verdict if figure is not None else "It has no trial yet."
    return Document("sweep", sweep, headline, sections)


def _sweep_facts(sweep: SweepDetail) -> list[tuple[str, str]]:
    goal = "lower is better" if sweep.goal == "minimize" else "higher is better"
    where = sweep.compared_at_step
    return [
        ("metric", f"{sweep.metric}, {goal}"),
        ("method", f"{sweep.method} over {', '.join(sweep.parameters)}"),
        ("trials", ", ".join(f"{n} {state}" for state, n in sweep.counts.items())),
        ("compared at", f"step {where:,}" if where is not None else formats.NOTHING),
        ("best", document.number(sweep.best_value)),
        *document.cost(sweep.cost),
        ("submitted", document.at(sweep.created_at)),
        ("ended", document.at(sweep.ended_at) if sweep.state == "finished" else formats.NOTHING),
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
            document.number(point.mean),
            document.number(point.spread),
        ]
        for point in ordered
    ]
    head = ["#", *formats.short_paths(paths), "seeds", "mean", "standard deviation"]
    return [Table(head, rows, "Points over their seeds", right=frozenset(range(len(paths) + 4)))]


def _trials(sweep: SweepDetail, trials: Sequence[TrialView]) -> Table:
    """Return what differs between the trials, with their results, best first."""
    shown = trials[:LISTED]
    rows = [
        [
            str(trial.rank or formats.NOTHING),
            *(formats.parameter(trial.parameters.get(path), path) for path in sweep.parameters),
            document.number(trial.compared_value),
            document.number(trial.value),
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


def rollout_report(
    rollout: RolloutDetail,
    curves: Mapping[str, Sequence[tuple[str, Series]]],
    provenance: Mapping[str, Any],
    diagnosed: Mapping[str, Sequence[AlertView]],
) -> Document:
    """Return the report. ``curves``: by metric, the name and points of each stage's run."""
    runs = [(one.run.name, one.run) for stage in rollout.stages for one in stage.runs]
    notes = [*([rollout.reason] if rollout.reason else []), *rollout.notes]
    if rollout.note:
        notes.append(f"Notes: {rollout.note}")
    sections = [
        Section(
            "Result",
            facts=[
                *document.cost(rollout.cost),
                ("submitted", document.at(rollout.created_at)),
                ("ended", document.at(rollout.ended_at)),
                ("run of the last stage", rollout.run_id or formats.NOTHING),
            ],
            notes=notes,
            alerts=document.alerts(runs, diagnosed),
        ),
        Section("Stages", tables=[_stages(rollout.stages)]),
        Section("Gates", tables=[_gates(rollout.stages)]),
        Section(
            "Curves",
            figures=[document.curves(metric, found) for metric, found in curves.items() if found],
            empty="No run has logged a metric yet.",
        ),
        document.config(rollout.spec),
        *document.provenance(provenance),
    ]
    passed = sum(stage.state == "passed" for stage in rollout.stages)
    headline = f"{passed} of {len(rollout.stages)} stages passed."
    return Document("rollout", rollout, headline, sections)


def _stages(stages: Sequence[StageView]) -> Table:
    rows = [
        [
            str(stage.number),
            stage.title,
            stage.state + (f": {stage.reason}" if stage.reason else ""),
            stage.model,
            f"{stage.gpus} on {stage.nodes}",
            f"{stage.steps:,}",
            formats.NOTHING if stage.cost is None else stage.cost.text,
            ", ".join(one.run.id for one in stage.runs),
        ]
        for stage in stages
    ]
    head = ["", "stage", "state", "model", "GPUs on nodes", "steps", "cost", "runs"]
    return Table(head, rows, right=frozenset({5}))


def _gates(stages: Sequence[StageView]) -> Table:
    rows = [
        [
            stage.title,
            gate.title,
            gate.state.replace("_", " "),
            gate.expected,
            gate.seen or formats.NOTHING,
            formats.count(gate.step),
        ]
        for stage in stages
        for gate in stage.gates
    ]
    head = ["stage", "gate", "verdict", "expected", "seen", "step"]
    return Table(head, rows, right=frozenset({5}))
