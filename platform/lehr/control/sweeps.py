"""What a sweep does next: the point it tries, the cells it gives up, and whether it goes on.

Pure: decided from what is recorded of its cells, so a restart decides the same again.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import islice
from typing import Any

from lehr.analysis.held_out import HeldOut
from lehr.control.lifecycle import ENDED, Desired, RunState
from lehr.control.search import Prune, Trial, TrialReport, ask, prune
from lehr.specs.search import MedianPruning, Pruning, point_key, random_points
from lehr.specs.sweep import SEED, SweepSpec

SAME_CAUSE = 3
"""So many cells that fail in one way, with none that did better, speak for all the others."""
_OF_THE_CELL = frozenset({"nan_loss"})
"""Causes that lie in a cell's values: that a learning rate diverges says nothing of the others."""
_DRAWS = 20
"""How often TPE may propose a point that exists already, before one is drawn at random."""


@dataclass(frozen=True)
class Cell:
    """One cell and where its run stands."""

    number: int
    parameters: Mapping[str, Any]
    run_id: str
    state: RunState
    attempt: int = 0
    desired: Desired = Desired.RUN
    cause: str | None = None
    reason: str | None = None
    ended_at: float | None = None
    total_steps: int = 0
    reports: tuple[TrialReport, ...] = ()
    """The sweep's metric."""
    held_out: str | None = None
    """Digest of the held-out set that the metric is measured on; None where that is not known, or
    the metric is not measured on one."""


@dataclass(frozen=True)
class PruneDecision:
    """A cell to end early."""

    run_id: str
    attempt: int
    """Of which this was decided; a later one is judged anew."""
    message: str


@dataclass(frozen=True)
class Decision:
    stop: str | None = None
    """Why no further cell is to start."""
    prune: tuple[PruneDecision, ...] = ()
    points: tuple[dict[str, Any], ...] = field(default=())
    """Cells to make: one point, once a seed."""


def decide(
    spec: SweepSpec, cells: Sequence[Cell], *, stopped: bool, reopened_at: float = 0.0
) -> Decision:
    """What follows from the cells as they stand.

    Args:
        spec: the sweep.
        cells: in its order.
        stopped: it starts no further cell, for whatever reason.
        reopened_at: failures before this are forgiven: people asked for another try.
    """
    stop = None if stopped else _why_stop(spec, cells, reopened_at)
    points: tuple[dict[str, Any], ...] = ()
    if stop is None and not stopped and wants_point(spec, cells):
        points = tuple(spec.seeded(next_point(spec, cells)))
    return Decision(stop, _prunes(spec, cells), points)


def needs_reports(spec: SweepSpec, cells: Sequence[Cell], *, stopped: bool) -> bool:
    """Whether the decision looks at the metric at all; reading it costs something."""
    if spec.pruning is not None and any(cell.state is RunState.RUNNING for cell in cells):
        return True
    if stopped:
        return False
    return wants_point(spec, cells) or _failed_alike(cells, 0.0) is not None


def more_to_come(spec: SweepSpec, cells: int) -> int:
    """Points that the search has yet to choose."""
    if spec.method != "tpe":
        return 0
    return max(spec.point_count - cells // spec.seed_count, 0)


def wants_point(spec: SweepSpec, cells: Sequence[Cell]) -> bool:
    """Whether TPE is to choose another point now.

    As late as it can be, since a later choice knows more: when none of the sweep's runs waits
    for a GPU any more, within ``max_concurrent``.
    """
    if not more_to_come(spec, len(cells)):
        return False
    live = [cell for cell in cells if cell.state not in ENDED]
    if any(cell.state is RunState.QUEUED for cell in live):
        return False
    return spec.max_concurrent is None or len(live) < spec.max_concurrent


def next_point(spec: SweepSpec, cells: Sequence[Cell]) -> dict[str, Any]:
    """The next point of a TPE sweep, without its seed: one that is not there yet."""
    trials = [_trial(cell, _point(spec, cell)) for cell in cells]
    known = {point_key(trial.parameters) for trial in trials}
    number = len(cells) // spec.seed_count + 1
    for draw in range(_DRAWS):
        point = ask(
            spec.space,
            trials,
            goal=spec.metric.goal,
            seed=spec.seed,
            number=number + draw * 1_000_003,
        )
        if point_key(point) not in known:
            return point
    # As many draws as there are cells, and one more, hold one that is new.
    drawn = islice(random_points(spec.space, spec.seed), len(known) + 1)
    return next(point for point in drawn if point_key(point) not in known)


def _point(spec: SweepSpec, cell: Cell) -> dict[str, Any]:
    seeded = spec.seeds is not None
    return {path: v for path, v in cell.parameters.items() if not (seeded and path == SEED)}


def _why_stop(spec: SweepSpec, cells: Sequence[Cell], reopened_at: float) -> str | None:
    waiting = any(cell.state in {RunState.QUEUED, RunState.PAUSED} for cell in cells)
    if not waiting and not more_to_come(spec, len(cells)):
        return None
    held_out = _held_out(cells)
    if more_to_come(spec, len(cells)) and held_out.verdict == "different":
        names = {cell.run_id: f"cell {cell.number}" for cell in cells}
        note = held_out.note(spec.metric.name, names, "cells")
        return f"TPE cannot choose its next point. {note}"
    failed = _failed(cells, reopened_at)
    if spec.max_failed is not None and len(failed) > spec.max_failed:
        return (
            f"{len(failed)} cells failed, and max_failed is {spec.max_failed}; "
            f"the last: {_said(failed[-1])}"
        )
    alike = _failed_alike(cells, reopened_at)
    if alike is None:
        return None
    return f"all {len(failed)} cells that ended failed in the same way: {_said(alike)}"


def _failed(cells: Sequence[Cell], reopened_at: float) -> list[Cell]:
    failed = [
        cell
        for cell in cells
        if cell.state is RunState.FAILED and (cell.ended_at or 0.0) > reopened_at
    ]
    return sorted(failed, key=lambda cell: (cell.ended_at or 0.0, cell.number))


def _failed_alike(cells: Sequence[Cell], reopened_at: float) -> Cell | None:
    """The newest failure, if every cell that got anywhere failed by one cause."""
    failed = _failed(cells, reopened_at)
    causes = {cell.cause for cell in failed}
    if len(failed) < SAME_CAUSE or len(causes) > 1 or causes & _OF_THE_CELL:
        return None
    better = {RunState.COMPLETED, RunState.PRUNED}
    for cell in cells:
        if cell.state in better or (cell.state not in ENDED and cell.reports):
            return None
    return failed[-1]


def _said(cell: Cell) -> str:
    text = (cell.reason or cell.cause or "no reason was given").strip()
    return f"{cell.cause}: {text}" if cell.cause and cell.cause not in text else text


def _prunes(spec: SweepSpec, cells: Sequence[Cell]) -> tuple[PruneDecision, ...]:
    rule = spec.pruning
    if rule is None or not any(_prunable(cell) for cell in cells):
        return ()
    total = max(cell.total_steps for cell in cells)
    verdicts: dict[int, Prune] = {
        verdict.number: verdict
        for group in _comparable(cells)
        for verdict in prune(
            rule,
            [_trial(cell, {}, rule) for cell in group],
            goal=spec.metric.goal,
            total_steps=total,
        )
    }
    return tuple(
        PruneDecision(
            cell.run_id, cell.attempt, f"{spec.metric.name}, {verdicts[cell.number].message}"
        )
        for cell in cells
        if cell.number in verdicts and _prunable(cell)
    )


def _held_out(cells: Sequence[Cell]) -> HeldOut:
    """Of the cells whose values the search looks at."""
    gone = {RunState.FAILED, RunState.CANCELLED}
    heard = [cell for cell in cells if cell.reports and cell.state not in gone]
    return HeldOut.of({cell.run_id: cell.held_out for cell in heard})


def _comparable(cells: Sequence[Cell]) -> list[Sequence[Cell]]:
    """All cells once for each held-out set: those of the other sets without their reports.

    They stay in the list, since Hyperband goes by a trial's place in it.
    """
    if _held_out(cells).verdict != "different":
        return [cells]
    digests = dict.fromkeys(cell.held_out for cell in cells if cell.reports)
    return [
        [cell if cell.held_out == digest else replace(cell, reports=()) for cell in cells]
        for digest in digests
    ]


def _prunable(cell: Cell) -> bool:
    """The last step's value comes when the training is over: there is nothing left to save."""
    at_end = bool(cell.reports) and cell.reports[-1].step >= cell.total_steps > 0
    return cell.state is RunState.RUNNING and cell.desired is Desired.RUN and not at_end


def _trial(cell: Cell, parameters: Mapping[str, Any], rule: Pruning | None = None) -> Trial:
    reports = cell.reports
    if rule is not None and not isinstance(rule, MedianPruning):
        reports = at_rungs(reports, rule.min_steps, rule.reduction)
    if cell.state is RunState.COMPLETED:
        return Trial(cell.number, parameters, "completed", reports)
    if cell.state is RunState.PRUNED or cell.desired is Desired.PRUNE:
        return Trial(cell.number, parameters, "pruned", reports)
    if cell.state in ENDED:
        return Trial(cell.number, parameters, "failed", reports)
    return Trial(cell.number, parameters, "running", reports)


def at_rungs(reports: Sequence[TrialReport], first: int, reduction: int) -> tuple[TrialReport, ...]:
    """What successive halving looks at: of each rung, the first report at or past it.

    All it does at other reports is to do nothing, slowly.
    """
    kept: list[TrialReport] = []
    rung = first
    for report in reports:
        if report.step < rung and math.isfinite(report.value):
            continue
        kept.append(report)
        while rung <= report.step:
            rung *= reduction
    if reports and (not kept or kept[-1] is not reports[-1]):
        kept.append(reports[-1])
    return tuple(kept)
