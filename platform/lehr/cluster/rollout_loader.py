"""Load rollouts and the evidence for their gates, for the snapshot of a tick."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import cast

from lehr.analysis.curve import Curve
from lehr.analysis.diagnosis import EXACT, JUDGED, diagnose
from lehr.analysis.gates import Evidence, Pair
from lehr.base.lru import Lru
from lehr.checkpoints.registry import CheckpointLocations
from lehr.cluster.isolation import Noted
from lehr.control.lifecycle import RunState
from lehr.control.rollouts import (
    OpenRollout,
    ResumePoint,
    StageRun,
    StageState,
    current,
    pair_is_over,
    wants_evidence,
)
from lehr.errors import LehrError
from lehr.specs.rollout import RolloutSpec
from lehr.specs.stages import PlannedStage, StageRunRole, stages
from lehr.store import Store
from lehr.store.tables import CheckpointRow, GateVerdict, RolloutRow, RunRow
from lehr_trainer.contract.records import Started

_KNOWN_RUNS = 20_000
_KNOWN_PLANS = 200
_NONE = ""  # The rollout of a run that belongs to none.

Runs = Mapping[StageRunRole, RunRow]


class RolloutLoader:
    """Loads only rollouts of which something has changed."""

    def __init__(self, store: Store, runs_dir: Path) -> None:
        self._store = store
        self._runs_dir = runs_dir
        self.changed = Noted()  # Rollouts to load with the next tick.
        self.changed_runs = Noted()
        self._rollout_of: Lru[str, str] = Lru(_KNOWN_RUNS)
        self._plans: Lru[str, list[PlannedStage]] = Lru(_KNOWN_PLANS)

    def take_changed(self) -> set[str]:
        run_ids = self.changed_runs.take()
        of_run = {run_id: self._rollout_of.get(run_id) for run_id in run_ids}
        if new := [run_id for run_id, rollout_id in of_run.items() if rollout_id is None]:
            recorded = self._store.rollouts.of_runs(new)
            for run_id in new:
                # A run belongs to its rollout from the transaction that records it.
                of_run[run_id] = recorded.get(run_id, _NONE)
                self._rollout_of.put(run_id, recorded.get(run_id, _NONE))
        return self.changed.take() | {rollout_id for rollout_id in of_run.values() if rollout_id}

    def load(self, rollout_id: str) -> OpenRollout | None:
        """Return the rollout; None if it has ended."""
        rollout = self._store.rollouts.get(rollout_id)
        if rollout.outcome is not None:
            return None
        planned = self._plan(rollout)
        rows = self._store.rollouts.stages(rollout_id)
        links = self._store.rollouts.runs(rollout_id)
        runs: list[Runs] = [
            {
                cast("StageRunRole", link.role): run
                for link, run in links
                if link.stage == row.number
            }
            for row in rows
        ]
        verdicts = self._store.rollouts.verdicts(rollout_id)
        states = [
            StageState(
                number=row.number,
                name=row.name,
                roles=stage.roles,
                gates=tuple(name for name, gate in stage.gates.items() if gate.enabled),
                outcome=row.outcome,
                runs={role: self._run(run) for role, run in of_stage.items()},
                verdicts={one.gate: one.verdict for one in verdicts if one.stage == row.number},
            )
            for stage, row, of_stage in zip(planned, rows, runs, strict=True)
        ]
        now = current(states)
        if now is None:
            return None
        stage, of_stage = planned[now.number - 1], runs[now.number - 1]
        return OpenRollout(
            rollout_id,
            planned,
            states,
            {one.gate: _reason(one) for one in verdicts if one.stage == now.number},
            self._evidence(stage, now, of_stage),
            self._resume_point(stage, now, of_stage),
        )

    def _plan(self, rollout: RolloutRow) -> list[PlannedStage]:
        plan = self._plans.get(rollout.id)
        if plan is None:
            plan = stages(RolloutSpec.model_validate(rollout.spec))
            self._plans.put(rollout.id, plan)
        return plan

    def _run(self, run: RunRow) -> StageRun:
        state = RunState(run.state)
        delivered = True
        if state.ended and run.attempt:
            delivered = not self._store.attempts.newest([run.id])[run.id].open
        return StageRun(run.id, state, delivered, run.cause, run.reason)

    def _evidence(self, stage: PlannedStage, now: StageState, runs: Runs) -> Evidence | None:
        """Return the evidence for the gates that can be judged now; it is expensive to read."""
        over = pair_is_over(now)
        if not over and not wants_evidence(now):
            return None
        compared = _pair(self._store, self._runs_dir, stage, runs) if over else None
        train = now.runs["train"]
        return _evidence(self._store, stage, runs["train"], over=train.over, pair=compared)

    def _resume_point(self, stage: PlannedStage, now: StageState, runs: Runs) -> ResumePoint | None:
        whole = now.runs.get(stage.whole)
        if "resumed" not in now.roles or "resumed" in now.runs or whole is None or not whole.over:
            return None
        run = runs[stage.whole]
        point = _last(self._store, run.id, stage.middle)
        if point is None:
            return None
        path = str(self._runs_dir / run.id / point.path)
        return ResumePoint(
            run.id, run.name, run.spec, point.attempt, point.step, point.digest, path
        )


def _reason(verdict: GateVerdict) -> str:
    if verdict.at_least is None and verdict.at_most is None:
        return verdict.seen
    return f"{verdict.seen}; expected {verdict.expected}"


_MEASURED = ("mfu", "memory/peak_bytes", "memory/reserved_bytes", "memory/rss_bytes")
_POINTS = 2_000
_TENSORS = ".safetensors"
"""Compared files: weights and optimizer. Others contain data of the launch."""


def _evidence(
    store: Store, stage: PlannedStage, run: RunRow, *, over: bool, pair: Pair | None = None
) -> Evidence:
    """Collect what the stage's ``train`` run has shown by the step at which it is judged.

    ``over``: no more data will come. ``pair``: what exact_resume compares, once both exist.
    """
    curves = {}
    for name in dict.fromkeys([*JUDGED, *_MEASURED]):
        for series in store.series.read_many(
            [run.id],
            name,
            exact=stage.judge_after <= _POINTS or name in EXACT,
            points=_POINTS,
            last=stage.judge_after,
            with_superseded=name in EXACT,
        ):
            earlier = tuple(Curve(one.step, one.y) for one in series.superseded)
            if series.y:
                curves[name] = Curve(series.step, series.y, earlier)
    newest = store.series.latest([run.id], ["train/loss"]).get(run.id, {}).get("train/loss")
    reached = newest is not None and newest.step >= stage.judge_after
    return Evidence(
        run_id=run.id,
        curves=curves,
        alerts=diagnose(
            curves,
            total_steps=stage.train.own.steps,
            warmup_steps=run.stored.warmup_steps,
            changes=run.stored.changes,
        ),
        device=_device(store, run.id),
        # A run that failed has shown all it could; only its alerts count.
        complete=(over and run.state == RunState.COMPLETED) or (stage.last and reached),
        cause=run.cause if run.state == RunState.FAILED else None,
        pair=pair,
    )


def _pair(
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
