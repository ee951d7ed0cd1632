"""Carry out decisions about rollouts; the dispatcher calls it once per tick."""

from __future__ import annotations

import logging
import math
import threading
from collections import OrderedDict
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import cast

from lehr.analysis.gates import TITLES, Judgement, Pair, judge
from lehr.cluster.rollout_evidence import evidence, middle_checkpoint, pair
from lehr.control import rollouts as control
from lehr.control.forks import fork_spec
from lehr.control.lifecycle import RunState
from lehr.control.rollouts import Act, Fail, Pass, StageRun, Submit, current, decide
from lehr.errors import SpecError
from lehr.specs.gates import GateName
from lehr.specs.rollout import RolloutSpec
from lehr.specs.run import RunSpec
from lehr.specs.stages import PlannedStage, StageRunRole, stages
from lehr.store import Change, Store
from lehr.store.tables import GateVerdict, RolloutRow, RolloutStage, RunRow

log = logging.getLogger(__name__)

_KNOWN_RUNS = 20_000
_KNOWN_PLANS = 200
_ACTS_A_LOOK = 50
"""More than any rollout needs at once, so that a pass always ends."""


class RolloutController:
    """Checks only rollouts that have changed. Each action is fenced by the store."""

    def __init__(self, store: Store, runs_dir: Path) -> None:
        self._store = store
        self._runs_dir = runs_dir
        self._guard = threading.Lock()
        self._dirty: set[str] = set()
        self._attempts_with_new_events: set[str] = set()
        self._rollout_of: OrderedDict[str, str | None] = OrderedDict()
        self._plans: OrderedDict[str, list[PlannedStage]] = OrderedDict()

    def enqueue_all(self) -> None:
        """Enqueue all open rollouts when a server starts."""
        with self._guard:
            self._dirty.update(self._store.rollouts.unended())

    def changed(self, change: Change) -> None:
        """Enqueue the run's rollout. May be called from any thread; fast."""
        with self._guard:
            if change.kind == "rollout":
                self._dirty.add(change.id)
            elif change.kind in {"run", "metrics"}:
                self._attempts_with_new_events.add(change.id)

    def tick(self) -> None:
        with self._guard:
            dirty, self._dirty = self._dirty, set()
            attempt_ids, self._attempts_with_new_events = self._attempts_with_new_events, set()
        dirty |= self._rollouts_of(attempt_ids)
        for rollout_id in sorted(dirty):
            try:
                self._look(rollout_id)
            except Exception:
                # An error of one rollout must not stop the queue; it is retried.
                log.exception("rollout %s could not be updated", rollout_id)
                with self._guard:
                    self._dirty.add(rollout_id)

    def _rollouts_of(self, run_ids: set[str]) -> set[str]:
        new = [run_id for run_id in run_ids if run_id not in self._rollout_of]
        if new:
            found = self._store.rollouts.of_runs(new)
            # A run belongs to its rollout from the transaction that records it.
            self._rollout_of.update({run_id: found.get(run_id) for run_id in new})
        known = {self._rollout_of[run_id] for run_id in run_ids}
        while len(self._rollout_of) > _KNOWN_RUNS:
            self._rollout_of.popitem(last=False)
        return {rollout_id for rollout_id in known if rollout_id is not None}

    def _look(self, rollout_id: str) -> None:
        for _ in range(_ACTS_A_LOOK):
            rollout = self._store.rollouts.get(rollout_id)
            if rollout.outcome is not None:
                return
            planned = self._plan(rollout)
            rows = self._store.rollouts.stages(rollout_id)
            links = self._store.rollouts.runs(rollout_id)
            runs: list[dict[StageRunRole, RunRow]] = [
                {
                    cast("StageRunRole", link.role): run
                    for link, run in links
                    if link.stage == row.number
                }
                for row in rows
            ]
            verdicts = self._store.rollouts.verdicts(rollout_id)
            seen = [
                self._stage(stage, row, of_stage, verdicts)
                for stage, row, of_stage in zip(planned, rows, runs, strict=True)
            ]
            now = current(seen)
            if now is None:
                return
            at = now.number - 1
            if self._judge(rollout, planned[at], now, runs[at]):
                continue
            act = decide(seen)
            if act is None or not self._carry_out(rollout, planned[at], now, runs[at], act):
                return

    def _plan(self, rollout: RolloutRow) -> list[PlannedStage]:
        if rollout.id not in self._plans:
            self._plans[rollout.id] = stages(RolloutSpec.model_validate(rollout.spec))
            if len(self._plans) > _KNOWN_PLANS:
                self._plans.popitem(last=False)
        return self._plans[rollout.id]

    def _stage(
        self,
        stage: PlannedStage,
        row: RolloutStage,
        runs: Mapping[StageRunRole, RunRow],
        verdicts: Sequence[GateVerdict],
    ) -> control.StageState:
        return control.StageState(
            number=row.number,
            name=row.name,
            roles=stage.roles,
            gates=tuple(name for name, gate in stage.gates.items() if gate.enabled),
            outcome=row.outcome,
            runs={role: self._run(run) for role, run in runs.items()},
            verdicts={one.gate: one.verdict for one in verdicts if one.stage == row.number},
        )

    def _run(self, run: RunRow) -> StageRun:
        state = RunState(run.state)
        delivered = True
        if state.ended and run.attempt:
            delivered = not self._store.attempts.newest([run.id])[run.id].open
        return StageRun(run.id, state, delivered, run.cause, run.reason)

    def _judge(
        self,
        rollout: RolloutRow,
        stage: PlannedStage,
        now: control.StageState,
        runs: Mapping[StageRunRole, RunRow],
    ) -> int:
        """Judge the gates that can be judged now. Return how many."""
        found: list[Judgement] = []
        compared: Pair | None = None
        if control.pair_is_over(now):
            compared = pair(self._store, self._runs_dir, stage, runs)
        elif not control.wants_evidence(now):
            return 0
        train = now.runs["train"]
        shown = evidence(self._store, stage, runs["train"], over=train.over, pair=compared)
        for name in now.gates:
            if name not in now.verdicts:
                judgement = judge(cast("GateName", name), stage, shown)
                found += [judgement] if judgement is not None else []
        rows = [_row(one) for one in found]
        return (
            self._store.rollout_progress.record_verdicts(rollout.id, now.number, rows)
            if rows
            else 0
        )

    def _carry_out(
        self,
        rollout: RolloutRow,
        stage: PlannedStage,
        now: control.StageState,
        runs: Mapping[StageRunRole, RunRow],
        act: Act,
    ) -> bool:
        """Carry out an action. Return False if the state had changed; then the decision is made
        again.
        """
        if isinstance(act, Pass):
            log.info("rollout %s: stage %s has passed", rollout.id, now.name)
            return self._store.rollout_progress.pass_stage(rollout.id, act.stage)
        if isinstance(act, Fail):
            return self._fail(rollout, stage, act)
        return self._submit(rollout, stage, runs, act)

    def _submit(
        self,
        rollout: RolloutRow,
        stage: PlannedStage,
        runs: Mapping[StageRunRole, RunRow],
        act: Submit,
    ) -> bool:
        if act.role != "resumed":
            run = self._store.rollout_progress.submit_run(
                rollout.id, act.stage, act.role, stage.runs[act.role]
            )
            return run is not None
        whole = runs[stage.whole]
        point = middle_checkpoint(self._store, stage, whole)
        if point is None:
            why = f"{whole.name} has no checkpoint at step {stage.middle:,} to go on from"
            return self._end(rollout, stage, why)
        try:
            spec = _resuming(stage, whole, point.step)
        except SpecError as error:
            return self._end(rollout, stage, f"the run that resumes cannot be created: {error}")
        run = self._store.rollout_progress.submit_run(
            rollout.id,
            act.stage,
            act.role,
            spec,
            resume_from=str(self._runs_dir / whole.id / point.path),
            forked_from=whole.id,
            provenance={
                "fork": {
                    "run": whole.id,
                    "name": whole.name,
                    "attempt": point.attempt,
                    "step": point.step,
                    "digest": point.digest,
                    "changes": {},
                }
            },
        )
        return run is not None

    def _fail(self, rollout: RolloutRow, stage: PlannedStage, act: Fail) -> bool:
        if act.gate is not None:
            verdict = next(
                one
                for one in self._store.rollouts.verdicts(rollout.id)
                if (one.stage, one.gate) == (act.stage, act.gate)
            )
            why = f"{TITLES[cast('GateName', act.gate)]}: {verdict.seen}"
            if verdict.at_least is not None or verdict.at_most is not None:
                why += f"; expected {verdict.expected}"
            return self._end(rollout, stage, why)
        assert act.run is not None
        why = act.run.reason or act.run.cause or "no reason was given"
        return self._end(rollout, stage, f"its run {act.run.state.value}: {why}")

    def _end(self, rollout: RolloutRow, stage: PlannedStage, why: str) -> bool:
        log.warning("rollout %s stops at stage %s: %s", rollout.id, stage.name, why)
        return self._store.rollout_progress.end(rollout.id, "failed", why, stage=stage.number)


def _resuming(stage: PlannedStage, whole: RunRow, step: int) -> RunSpec:
    """Return the whole run's spec with another name and without mirrors."""
    changes = {"name": stage.run_name("resumed"), "tracking": {}}
    return fork_spec(whole.spec, changes, step=step)


def _row(found: Judgement) -> GateVerdict:
    value = found.value
    return GateVerdict(
        rollout_id="",
        stage=0,
        at=0.0,
        gate=found.gate,
        verdict=found.verdict,
        expected=found.expected.text,
        seen=found.seen,
        value=value if value is not None and math.isfinite(value) else None,
        at_least=found.expected.at_least,
        at_most=found.expected.at_most,
        unit=found.expected.unit,
        run_id=found.run_id,
        step=found.step,
    )
