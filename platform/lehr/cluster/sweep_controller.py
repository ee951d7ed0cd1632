"""Carry out decisions about sweeps; the dispatcher calls it once per tick."""

from __future__ import annotations

import logging
import threading
from collections import OrderedDict
from collections.abc import Sequence

from lehr.analysis.held_out import is_measured
from lehr.control.lifecycle import Desired, RunState
from lehr.control.search import TrialReport
from lehr.control.sweeps import Decision, TrialState, decide, needs_reports
from lehr.errors import NotFound, SpecError
from lehr.specs.sweep import SweepSpec
from lehr.specs.sweep_expand import trials_at
from lehr.store import Change, Store
from lehr.store.records.sweep_progress import TrialProgress
from lehr.store.tables import SweepRow

log = logging.getLogger(__name__)

_KEPT = 10_000
"""Number of sweeps whose reports are cached while they do not change."""


class SweepController:
    """Checks only sweeps that have changed. Each action is fenced by the store."""

    def __init__(self, store: Store) -> None:
        self._store = store
        self._guard = threading.Lock()
        self._dirty: set[str] = set()
        self._attempts_with_new_events: set[str] = set()
        self._sweep_of: dict[str, str | None] = {}
        self._reports: OrderedDict[tuple[str, int, int], tuple[TrialReport, ...]] = OrderedDict()

    def enqueue_all(self) -> None:
        """Enqueue all open sweeps when a server starts."""
        with self._guard:
            self._dirty.update(self._store.sweeps.unended())

    def changed(self, change: Change) -> None:
        """Enqueue the run's sweep. May be called from any thread; fast."""
        with self._guard:
            if change.kind == "sweep":
                self._dirty.add(change.id)
            elif change.kind == "metrics":
                self._attempts_with_new_events.add(change.id)

    def tick(self) -> None:
        with self._guard:
            dirty, self._dirty = self._dirty, set()
            attempt_ids, self._attempts_with_new_events = self._attempts_with_new_events, set()
        for run_id in attempt_ids:
            sweep_id = self._pruned_sweep(run_id)
            if sweep_id is not None:
                dirty.add(sweep_id)
        for sweep_id in sorted(dirty):
            try:
                self._look(sweep_id)
            except Exception:
                # An error of one sweep must not stop the queue; it is retried.
                log.exception("sweep %s could not be updated", sweep_id)
                with self._guard:
                    self._dirty.add(sweep_id)

    def _pruned_sweep(self, run_id: str) -> str | None:
        """Return the run's sweep if new metrics of the run may prune it or other trials."""
        if run_id not in self._sweep_of:
            run = self._store.runs.get(run_id)
            sweep = self._store.sweeps.get(run.sweep_id) if run.sweep_id is not None else None
            pruned = sweep is not None and sweep.spec.get("pruning") is not None
            self._sweep_of[run_id] = run.sweep_id if pruned else None
        return self._sweep_of[run_id]

    def _look(self, sweep_id: str) -> None:
        sweep = self._store.sweeps.get(sweep_id)
        spec = SweepSpec.model_validate(sweep.spec)
        standing = self._store.sweep_progress.trials(sweep_id)
        stopped = sweep.stopped is not None
        trials = [_trial(one) for one in standing]
        if needs_reports(spec, trials, stopped=stopped):
            reports = self._read_reports(spec, standing)
            reporting = [one.run_id for one, seen in zip(standing, reports, strict=True) if seen]
            held_out = (
                self._store.events.held_out(reporting) if is_measured(spec.metric.name) else {}
            )
            trials = [
                _trial(one, seen, held_out.get(one.run_id))
                for one, seen in zip(standing, reports, strict=True)
            ]
        decision = decide(spec, trials, stopped=stopped, reopened_at=sweep.reopened_at or 0.0)
        self._carry_out(sweep, spec, trials, decision)

    def _carry_out(
        self, sweep: SweepRow, spec: SweepSpec, trials: Sequence[TrialState], decision: Decision
    ) -> None:
        if decision.stop is not None and self._store.sweep_progress.stop(
            sweep.id, decision.stop, actor="sweep"
        ):
            log.warning("sweep %s stops: %s", sweep.id, decision.stop)
        for give in decision.prune:
            if self._store.requests.prune(give.run_id, give.attempt, give.message):
                log.info("run %s is pruned: %s", give.run_id, give.message)
        if decision.points:
            known = len(trials)
            try:
                made = trials_at(spec, decision.points, first=known + 1)
            except SpecError as error:
                # The bounds of each range were checked, but not every combination of values.
                self._store.sweep_progress.stop(
                    sweep.id, f"the next trial cannot be created: {error}", actor="sweep"
                )
                return
            self._store.sweep_progress.add_trials(sweep.id, made, known=known, actor="sweep")

    def _read_reports(
        self, spec: SweepSpec, standing: Sequence[TrialProgress]
    ) -> list[tuple[TrialReport, ...]]:
        name = spec.metric.name
        latest = self._store.series.latest([one.run_id for one in standing], [name])
        found: list[tuple[TrialReport, ...]] = []
        for one in standing:
            newest = latest.get(one.run_id, {}).get(name)
            if newest is None:
                found.append(())
                continue
            key = (one.run_id, one.attempt, newest.step)
            if key not in self._reports:
                self._reports[key] = self._report(one, name)
                while len(self._reports) > _KEPT:
                    self._reports.popitem(last=False)
            found.append(self._reports[key])
        return found

    def _report(self, one: TrialProgress, name: str) -> tuple[TrialReport, ...]:
        try:
            series = self._store.series.read(one.run_id, name, x_axis="time", exact=True)
        except NotFound:
            return ()
        began = one.started_at or 0.0
        return tuple(
            TrialReport(step, value, began + seconds)
            for step, seconds, value in zip(series.step, series.x, series.y, strict=True)
        )


def _trial(
    one: TrialProgress, reports: tuple[TrialReport, ...] = (), held_out: str | None = None
) -> TrialState:
    return TrialState(
        number=one.number,
        parameters=one.parameters,
        run_id=one.run_id,
        state=RunState(one.state),
        attempt=one.attempt,
        desired=Desired(one.desired),
        cause=one.cause,
        reason=one.reason,
        ended_at=one.ended_at,
        total_steps=int(one.total_steps),
        reports=reports,
        held_out=held_out,
    )
