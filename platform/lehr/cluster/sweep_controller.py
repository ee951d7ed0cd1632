"""Carries out what a sweep's trials decide: the dispatcher asks it to look, once a tick."""

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
"""Reports of so many runs are kept, for as long as nothing was added to them."""


class SweepController:
    """Looks only at sweeps of which something changed; each act is fenced by the record."""

    def __init__(self, store: Store) -> None:
        self._store = store
        self._guard = threading.Lock()
        self._dirty: set[str] = set()
        self._attempts_with_new_events: set[str] = set()
        self._sweep_of: dict[str, str | None] = {}
        self._reports: OrderedDict[tuple[str, int, int], tuple[TrialReport, ...]] = OrderedDict()

    def look_at_all(self) -> None:
        """When a server starts: whatever had been about to happen."""
        with self._guard:
            self._dirty.update(self._store.sweeps.unended())

    def changed(self, change: Change) -> None:
        """From any thread; quick."""
        with self._guard:
            if change.kind == "sweep":
                self._dirty.add(change.id)
            elif change.kind == "metrics":
                self._attempts_with_new_events.add(change.id)

    def tick(self) -> None:
        with self._guard:
            dirty, self._dirty = self._dirty, set()
            spoke, self._attempts_with_new_events = self._attempts_with_new_events, set()
        for run_id in spoke:
            sweep_id = self._pruned_sweep(run_id)
            if sweep_id is not None:
                dirty.add(sweep_id)
        for sweep_id in sorted(dirty):
            try:
                self._look(sweep_id)
            except Exception:
                # One sweep's fault must not hold the cluster's queue; it is looked at again.
                log.exception("sweep %s could not be updated", sweep_id)
                with self._guard:
                    self._dirty.add(sweep_id)

    def _pruned_sweep(self, run_id: str) -> str | None:
        """The run's sweep, if what the run says may end it or others."""
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
            heard = [one.run_id for one, seen in zip(standing, reports, strict=True) if seen]
            held_out = self._store.events.held_out(heard) if is_measured(spec.metric.name) else {}
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
                # The ends of each range were checked, but not every combination of values.
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
