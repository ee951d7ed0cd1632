"""Load the sweeps and rollouts of which something has changed; a fault of one is its own."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any, Literal, TypeVar

from lehr.analysis.batches import is_measured
from lehr.analysis.forecast import UNPLANNED, Planned, planned
from lehr.analysis.laws.question import Next
from lehr.base.lru import Lru
from lehr.cluster.isolation import Isolation, Noted
from lehr.cluster.rollout_loader import RolloutLoader
from lehr.control.campaign_record import TrialState
from lehr.control.evaluations import EvaluatedRun
from lehr.control.lifecycle import Desired, RunState
from lehr.control.rollouts import OpenRollout
from lehr.control.search import TrialReport
from lehr.control.step import Subject
from lehr.control.sweeps import OpenSweep, Trunk, needs_reports, pause_of_pruning_s
from lehr.specs.sweep import SweepSpec
from lehr.store import Change, Store
from lehr.store.records.sweeps import TrialOutline
from lehr.store.scores import evaluated_run

BESIDE = ThreadPoolExecutor(1, "campaigns")
"""The thread in which campaigns choose. A simulation has its own."""
_KEPT = 10_000  # Number of trials whose reports are cached while they do not change.
_KNOWN_RUNS = 20_000
_CAMPAIGNS = 100  # Number of campaigns whose last choice is kept.
_SPEED = "tokens_per_s"
_NONE = ""  # The pruned sweep of a run that belongs to none.
_Reports = tuple[tuple[int, int], tuple[TrialReport, ...]]
"""The attempt and the newest step that were read, and the reports."""


class SweepLoader:
    """Loads only sweeps of which something has changed."""

    def __init__(self, store: Store, runs_dir: Path, now: Callable[[], float]) -> None:
        """``now``: a monotonic clock."""
        self._store = store
        self._runs_dir = runs_dir
        self._now = now
        self.changed = Noted()  # Sweeps to load with the next tick.
        self.measured_runs = Noted()  # Runs that have new metrics.
        self._paused_until: dict[str, float] = {}
        """By large sweep: when its trials are judged again."""
        self._to_judge: set[str] = set()  # Paused sweeps of which something has changed.
        self._sweep_of: Lru[str, str] = Lru(_KNOWN_RUNS)
        self._reports: Lru[tuple[str, str], _Reports] = Lru(_KEPT)  # By run and metric.
        self._choices: Lru[str, tuple[Any, Future[Next]]] = Lru(_CAMPAIGNS)
        """By campaign: what it asked last, and the answer."""

    def take_changed(self) -> set[str]:
        """Return the ids of the sweeps to load now, and forget them."""
        due = {sweep_id for sweep_id in self._to_judge if not self._is_paused(sweep_id)}
        self._to_judge -= due
        return self.changed.take() | due

    def judges_in_s(self) -> float | None:
        """Return seconds until a paused sweep is to be loaded; None if there is none."""
        until = [self._paused_until.get(sweep_id, 0.0) for sweep_id in self._to_judge]
        return max(0.0, min(until) - self._now()) if until else None

    def enqueue_pruned(self, run_id: str) -> None:
        """Enqueue the run's sweep if new metrics of the run may prune a trial of it."""
        sweep_id = self._pruned_sweep(run_id)
        if sweep_id is None:
            return
        if self._is_paused(sweep_id):
            self._to_judge.add(sweep_id)
        else:
            self.changed.add([sweep_id])

    def load(self, sweep_id: str) -> OpenSweep:
        """Return the sweep; its trials have reports only if a decision needs them."""
        sweep = self._store.sweeps.get(sweep_id)
        spec = SweepSpec.model_validate(sweep.spec)
        progress = self._store.sweeps.outlines(sweep_id)
        stopped = sweep.stopped is not None
        trials = [_trial(one) for one in progress]
        judged = not self._is_paused(sweep_id)
        if judged:
            self._to_judge.discard(sweep_id)
        else:
            self._to_judge.add(sweep_id)
        if needs_reports(spec, trials, stopped=stopped, judged=judged):
            trials = _with_reports(self._store, spec, progress, self._reports)
            if judged and (pause_s := pause_of_pruning_s(spec, trials)) > 0.0:
                self._paused_until[sweep_id] = self._now() + pause_s
        if spec.campaign is not None:
            trials = _with_costs(self._store, trials, progress)
        reopened_at = sweep.reopened_at or 0.0
        trunk, choose = self._trunk(sweep_id), partial(self._choose, sweep_id)
        return OpenSweep(sweep_id, spec, trials, stopped, reopened_at, judged, trunk, choose)

    def _choose(self, sweep_id: str, *asked: Any) -> Next | None:
        """Return a campaign's choice once it is made, beside the ticks: it takes up to a second.

        It is one of the record that asks: another record asks anew.
        """
        if (made := self._choices.get(sweep_id)) is None or made[0] != asked:
            made = asked, BESIDE.submit(_chosen, *asked)
            self._choices.put(sweep_id, made)
            made[1].add_done_callback(lambda _: self._store.notify(Change("sweep", sweep_id)))
        return made[1].result() if made[1].done() else None

    def _trunk(self, sweep_id: str) -> Trunk | None:
        run = self._store.sweeps.trunk(sweep_id)
        if run is None:
            return None
        state, last = RunState(run.state), run.stored.total_steps
        saved = [one for one in self._store.checkpoints.of_run(run.id) if one.step == last]
        base = None
        if saved and state is RunState.COMPLETED:
            newest = max(saved, key=lambda one: one.attempt)
            base = str(self._runs_dir / run.id / newest.path)
        return Trunk(run.id, run.name, state, run.reason, base)

    def _is_paused(self, sweep_id: str) -> bool:
        if self._now() < self._paused_until.get(sweep_id, 0.0):
            return True
        self._paused_until.pop(sweep_id, None)
        return False

    def _pruned_sweep(self, run_id: str) -> str | None:
        """Return the run's sweep if new metrics of the run may prune it or other trials."""
        known = self._sweep_of.get(run_id)
        if known is None:
            run = self._store.runs.get(run_id)
            sweep = self._store.sweeps.get(run.sweep_id) if run.sweep_id is not None else None
            known = sweep.id if sweep is not None and sweep.spec.get("pruning") else _NONE
            self._sweep_of.put(run_id, known)
        return known or None


def _chosen(*asked: Any) -> Next:
    from lehr.control import campaign_choice  # Needs numpy, which takes a while to import.

    return campaign_choice.choose(*asked)


def campaign_trials(store: Store, spec: SweepSpec, sweep_id: str) -> list[TrialState]:
    """Return the trials of a campaign, each with its reports and what it has cost."""
    progress = store.sweeps.outlines(sweep_id)
    trials = _with_reports(store, spec, progress, Lru(_KEPT))
    return _with_costs(store, trials, progress)


def _with_reports(
    store: Store,
    spec: SweepSpec,
    progress: Sequence[TrialOutline],
    known: Lru[tuple[str, str], _Reports],
) -> list[TrialState]:
    """Return trials with their reports. ``known``: those that were read, by run and metric."""
    name = spec.metric.name
    latest = store.series.latest([one.run_id for one in progress], [name])
    reports: dict[str, tuple[TrialReport, ...]] = {}
    for one in progress:
        if (newest := latest.get(one.run_id, {}).get(name)) is None:
            continue
        version, own = (one.attempt, newest.step), known.get((one.run_id, name))
        if own is None or own[0] != version:
            own = (version, reports_of(store, one.run_id, name, one.started_at))
            known.put((one.run_id, name), own)
        reports[one.run_id] = own[1]
    reporting = [run_id for run_id, own in reports.items() if own]
    held_out = store.events.held_out(reporting, name) if is_measured(name) else {}
    plans: dict[str, Planned] = {}
    if spec.campaign is not None or (spec.pruning and spec.pruning.name == "forecast"):
        cut = [one.run_id for one in progress if one.state != RunState.COMPLETED]
        plans = {row.id: planned(row.stored) for row in store.runs.by_ids(cut)}
    return [
        replace(
            _trial(one),
            reports=reports.get(one.run_id, ()),
            held_out=held_out.get(one.run_id),
            planned=plans.get(one.run_id, UNPLANNED),
        )
        for one in progress
    ]


def _with_costs(
    store: Store, trials: Sequence[TrialState], progress: Sequence[TrialOutline]
) -> list[TrialState]:
    """Return the trials of a campaign with what they have cost."""
    run_ids = [one.run_id for one in progress]
    speeds, times = store.series.latest(run_ids, [_SPEED]), store.attempts.times_by_run(run_ids)
    now, found = store.clock(), []
    for trial, one in zip(trials, progress, strict=True):
        # A CPU counts as one GPU.
        held = [time._replace(gpus=max(time.gpus, 1)) for time in times[one.run_id]]
        used = [(time.ended is None, time.hours(now)) for time in held]
        speed, tokens = (
            speeds.get(one.run_id, {}).get(_SPEED),
            one.spans[-1].tokens_at(one.total_steps or 0),
        )
        found.append(
            replace(
                trial,
                hours=sum(hours for lives, hours in used if not lives),
                living_hours=next((hours for lives, hours in used if lives), None),
                limit_s=one.limit_s or 0.0,
                steps_s=tokens / speed.value if speed is not None and speed.value > 0.0 else 0.0,
            )
        )
    return found


def reports_of(
    store: Store, run_id: str, name: str, began: float | None = None
) -> tuple[TrialReport, ...]:
    """Return what a run that ``began`` then has reported of a metric."""
    return tuple(
        TrialReport(step, value, (began or 0.0) + seconds)
        for series in store.series.read_many([run_id], name, x_axis="time", exact=True)
        for step, seconds, value in zip(series.step, series.x, series.y, strict=True)
    )


def _trial(one: TrialOutline) -> TrialState:
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
        total_steps=one.total_steps,
        waits=one.waits,
    )


T = TypeVar("T")


class GroupLoader:
    """Sweeps and rollouts are groups of runs: each decides which runs come next."""

    def __init__(
        self, store: Store, runs_dir: Path, isolation: Isolation, now: Callable[[], float]
    ) -> None:
        """``now``: a monotonic clock."""
        self._store = store
        self._sweeps = SweepLoader(store, runs_dir, now)
        self._rollouts = RolloutLoader(store, runs_dir)
        self._changed_runs = Noted()
        self._isolation = isolation

    def enqueue_all(self) -> None:
        """Load every open group with the next snapshot, as a new server must."""
        self._sweeps.changed.add(self._store.sweeps.unended())
        self._rollouts.changed.add(self._store.rollouts.unended())
        self._changed_runs.add(self._store.runs.evaluated())

    def enqueue(self, subject: Subject) -> None:
        """Load the group again with the next snapshot. Subjects of other kinds are ignored."""
        if subject.kind == "sweep":
            self._sweeps.changed.add([subject.id])
        elif subject.kind == "rollout":
            self._rollouts.changed.add([subject.id])
        elif subject.kind == "evaluations":
            self._changed_runs.add([subject.id])

    def changed(self, change: Change) -> None:
        """Note a change of the record. May be called from any thread; fast."""
        if change.kind == "sweep":
            self._sweeps.changed.add([change.id])
        elif change.kind == "rollout":
            self._rollouts.changed.add([change.id])
        elif change.kind in {"run", "metrics"}:
            self._rollouts.changed_runs.add([change.id])
            if change.kind == "run":
                self._changed_runs.add([change.id])
            else:
                self._sweeps.measured_runs.add([change.id])

    def sweeps(self) -> list[OpenSweep]:
        """Return the sweeps that have changed since the last call."""
        for run_id in sorted(self._sweeps.measured_runs.take()):
            find = partial(self._sweeps.enqueue_pruned, run_id)
            self._isolation.do(Subject("run", run_id), "finding its sweep", find)
        return self._load("sweep", self._sweeps.take_changed(), self._sweeps.load)

    def sweeps_in_s(self) -> float | None:
        return self._sweeps.judges_in_s()

    def rollouts(self) -> list[OpenRollout]:
        return self._load("rollout", self._rollouts.take_changed(), self._rollouts.load)

    def evaluated(self) -> list[EvaluatedRun]:
        """Return the runs with evaluations of which something has changed since the last call."""
        changed = self._changed_runs.take()
        run_ids = self._store.runs.evaluated(changed) if changed else changed
        return self._load("evaluations", run_ids, partial(evaluated_run, self._store))

    def _load(
        self,
        kind: Literal["sweep", "rollout", "evaluations"],
        group_ids: set[str],
        load: Callable[[str], T | None],
    ) -> list[T]:
        loaded: list[T] = []

        def read(group_id: str) -> None:
            if (group := load(group_id)) is not None:
                loaded.append(group)

        for group_id in sorted(group_ids):
            subject, part = Subject(kind, group_id), "reading it"
            if not self._isolation.do(
                subject, part, partial(read, group_id)
            ) and self._isolation.tries_again(subject, part):
                self.enqueue(subject)
        return loaded
