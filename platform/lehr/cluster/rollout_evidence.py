"""Evidence for a stage's gates, read from the store."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from lehr.analysis.curve import Curve
from lehr.analysis.diagnosis import EXACT, JUDGED, diagnose
from lehr.analysis.gate_evidence import Evidence, Pair
from lehr.checkpoints.registry import CheckpointLocations
from lehr.control.lifecycle import RunState
from lehr.errors import LehrError, NotFound
from lehr.specs.stages import PlannedStage, StageRunRole
from lehr.store import Store
from lehr.store.tables import CheckpointRow, RunRow
from lehr_trainer.contract.records import Started

_MEASURED = ("mfu", "memory/peak_bytes", "memory/reserved_bytes", "memory/rss_bytes")
_POINTS = 2_000
_TENSORS = ".safetensors"
"""Compared files: weights and optimizer. Others contain data of the launch."""


def evidence(
    store: Store, stage: PlannedStage, run: RunRow, *, over: bool, pair: Pair | None = None
) -> Evidence:
    """Collect what the stage's run has shown by the step at which it is judged.

    Args:
        store: the store.
        stage: the planned stage.
        run: its ``train`` run.
        over: no more data will come.
        pair: what exact_resume compares, once both exist.
    """
    curves = {}
    for name in dict.fromkeys([*JUDGED, *_MEASURED]):
        try:
            series = store.series.read(
                run.id,
                name,
                exact=stage.judge_after <= _POINTS or name in EXACT,
                points=_POINTS,
                last=stage.judge_after,
                with_superseded=name in EXACT,
            )
        except NotFound:
            continue
        if series.y:
            earlier = tuple(Curve(one.step, one.y) for one in series.superseded)
            curves[name] = Curve(series.step, series.y, earlier)
    train = stage.train.own
    newest = store.series.latest([run.id], ["train/loss"]).get(run.id, {}).get("train/loss")
    reached = newest is not None and newest.step >= stage.judge_after
    return Evidence(
        run_id=run.id,
        curves=curves,
        alerts=diagnose(
            curves,
            total_steps=train.steps,
            warmup_steps=train.schedule.warmup(train.steps),
            changes=train.batch.changes(train.steps),
        ),
        device=_device(store, run.id),
        # A run that failed has shown all it could; only its alerts count.
        complete=(over and run.state == RunState.COMPLETED) or (stage.last and reached),
        cause=run.cause if run.state == RunState.FAILED else None,
        pair=pair,
    )


def pair(
    store: Store, runs_dir: Path, stage: PlannedStage, runs: Mapping[StageRunRole, RunRow]
) -> Pair:
    """Return the digests of both runs' last checkpoints, or why they are missing."""
    whole, resumed = runs[stage.whole], runs.get("resumed")
    step = stage.runs[stage.whole].own.steps
    for run in (whole, resumed):
        if run is not None and run.state != RunState.COMPLETED:
            why = f"{run.name} {run.state}: {run.reason or run.cause or 'no reason was given'}"
            return Pair(run.id, step, problem=why, failed=True)
    assert resumed is not None
    found: list[Mapping[str, str]] = []
    rows = [_last(store, run.id, step) for run in (whole, resumed)]
    for run, row in zip((whole, resumed), rows, strict=True):
        if row is None:
            why = f"{run.name} has no checkpoint at step {step:,}"
            return Pair(resumed.id, step, problem=why, failed=True)
        try:
            files = CheckpointLocations(runs_dir, run, row).files().files
        except LehrError as error:
            return Pair(resumed.id, step, problem=str(error))
        found.append({one.name: one.sha256 for one in files if one.name.endswith(_TENSORS)})
    return Pair(resumed.id, step, whole=found[0], resumed=found[1])


def middle_checkpoint(store: Store, stage: PlannedStage, whole: RunRow) -> CheckpointRow | None:
    """Return the checkpoint that the resumed run continues from."""
    return _last(store, whole.id, stage.middle)


def _last(store: Store, run_id: str, step: int) -> CheckpointRow | None:
    matching = [row for row in store.checkpoints.of_run(run_id) if row.step == step]
    return max(matching, key=lambda row: row.attempt, default=None)


def _device(store: Store, run_id: str) -> str | None:
    devices = [
        stored.record.device
        for stored in store.events.records(run_id, {"started"})
        if isinstance(stored.record, Started)
    ]
    return devices[-1] if devices else None
