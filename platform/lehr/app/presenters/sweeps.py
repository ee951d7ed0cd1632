"""Views of sweeps: their trials, ranked, with notes on the result."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from itertools import chain
from typing import Any

from lehr.analysis.batches import is_measured
from lehr.analysis.noise import Noise, pooled_noise
from lehr.analysis.task_verdict import LOSS, MEASURED, TASKS, disagreement
from lehr.app.presenters.advice import with_advice
from lehr.app.presenters.cost import Costs, used_view
from lehr.app.presenters.forecasts import saved_note
from lehr.app.presenters.ranking import (
    Point,
    SweepVerdict,
    TrialStatus,
    noise_band,
    notes,
    rank,
    seed_notes,
)
from lehr.app.presenters.runs import RunPresenter
from lehr.app.presenters.streams import shared_fields
from lehr.app.presenters.sweep_progress import (
    progress,
    progress_note,
    sweep_state,
    trials_remaining,
    trunk_note,
)
from lehr.base import formats
from lehr.base.names import is_rate, is_seed, task_of
from lehr.control.evaluations import awaited
from lehr.control.lifecycle import RunState
from lehr.schemas.runs import RunView
from lehr.schemas.sweeps import (
    NoiseView,
    PointView,
    StandingView,
    SweepDetail,
    SweepView,
    TrialView,
)
from lehr.specs.evaluations import OF_TASKS
from lehr.store import Store
from lehr.store.records.sweeps import TrialOutline
from lehr.store.scores import evaluated_run
from lehr.store.streams.series import LatestValue
from lehr.store.tables import RunRow, SweepRow
from lehr_trainer.configs.stages import StageSpan, span_of, steps_within

PAGE = 100  # Default number of trials in an answer.
_OTHERS = 50  # Sweeps that may know the noise of another one, the newest.
BEST = 10  # Number of best trials in each answer.


@dataclass(frozen=True)
class _Judged:
    trials: list[TrialOutline]
    repetitions: list[TrialOutline]
    """Their runs in other sweeps with other seeds; they count for the points of the trials."""
    standings: list[TrialStatus]  # Trials whose batches differ are compared at equal tokens.
    verdict: SweepVerdict
    newest: dict[str, LatestValue]  # Each run's newest value of the metric.
    spans: list[StageSpan] | None
    """Of each trial; None where their tokens per step differ, so that they are compared at equal
    tokens."""
    held_out: dict[str, str | None]
    """Digests by run; none where the metric is not measured on a held-out set."""
    held_out_note: str | None
    trunk: RunRow | None  # The run from whose last checkpoint the trials start.

    @property
    def run_ids(self) -> list[str]:
        first = [self.trunk.id] if self.trunk is not None else []
        return [*first, *(trial.run_id for trial in self.trials)]


class SweepPresenter:
    """Makes views of sweeps."""

    def __init__(self, store: Store, runs: RunPresenter) -> None:
        self._store = store
        self._runs = runs
        self._costs = Costs(store)

    def views(self, sweeps: Sequence[SweepRow]) -> list[SweepView]:
        """Return the views in the same order."""
        return [SweepView(**self._fields(sweep, self._judge(sweep))) for sweep in sweeps]

    def detail(
        self,
        sweep: SweepRow,
        *,
        limit: int = PAGE,
        cursor: str | None = None,
        states: Collection[str] | None = None,
        run_ids: Collection[str] | None = None,
    ) -> SweepDetail:
        """Return the sweep with a page of ``limit`` trials.

        ``states``: only trials whose run is in one of them. ``run_ids``: only trials of these runs,
        and the standings of all.
        """
        judged = self._judge(sweep)
        found = judged.trials
        if states is not None:
            found = [trial for trial in found if trial.state in states]
        if run_ids is not None:
            found = [trial for trial in found if trial.run_id in run_ids]
        left = [trial for trial in found if trial.number > int(cursor or 0)]
        page = left[:limit]
        ranks = judged.verdict.ranks
        ranked = [trial for trial in judged.trials if trial.run_id in ranks]
        best = sorted(ranked, key=lambda trial: ranks[trial.run_id])[:BEST]
        shown = dict.fromkeys(trial.run_id for trial in [*page, *best, *judged.repetitions])
        rows = self._store.runs.by_ids(shown)
        views = {view.id: view for view in self._runs.views(rows)}
        return self._whole(sweep, judged, outlined=False).model_copy(
            update={
                "trials": _trial_views(judged, views, page),
                "next_cursor": str(page[-1].number) if len(left) > limit else None,
                "trials_total": len(found),
                "best_trials": _trial_views(judged, views, best),
                "repetitions": _trial_views(judged, views, judged.repetitions),
                "standings": _standings(judged, judged.trials) if run_ids is not None else [],
                **progress(judged.trials, judged.trunk, self._runs.latest),
                "cost": self._costs.of_runs(
                    sweep.id,
                    judged.run_ids,
                    device=next((v.device for v in views.values() if v.device is not None), None),
                    gpu_type=sweep.stored.run.gpu_type,
                ),
            }
        )

    def outline(self, sweep: SweepRow) -> SweepDetail:
        """Return the sweep with all of its trials; of their runs, only what figures show."""
        return self._whole(sweep, self._judge(sweep), outlined=True)

    def noise(self, sweep: SweepRow, metric: str, x_axis: str, x: float | None) -> Noise | None:
        """Return the noise between its seeds; None unless it compares its trials there."""
        if metric != sweep.stored.metric:
            return None
        judged = self._judge(sweep)
        there = self._fields(sweep, judged).get(f"compared_at_{x_axis}")
        noise = pooled_noise(point.values for point in judged.verdict.points)
        return replace(noise, sweep=sweep.name) if noise and x is not None and x == there else None

    def _whole(self, sweep: SweepRow, judged: _Judged, *, outlined: bool) -> SweepDetail:
        metric = sweep.stored.metric
        verdict = judged.verdict
        noise = pooled_noise(point.values for point in verdict.points)
        several = any(len(point.run_ids) > 1 for point in verdict.points)
        fields = self._fields(sweep, judged)
        # Until the sweep ends, trials are compared at an early step: too early for a fit.
        fitted = fields["state"] == "finished" and fields["parameters"] and verdict.step is not None
        outlined = outlined or bool(fitted)
        detail = SweepDetail(
            **fields,
            points=[
                PointView.model_validate(point, from_attributes=True)
                for point in verdict.points
                if several
            ],
            noise=noise.deviation if noise else None,
            noise_band=noise_band(verdict.points, noise),
            noise_elsewhere=self._noise_elsewhere(sweep) if fitted and not noise else None,
            spec=sweep.spec,
            trials=_outline_views(judged, judged.trials) if outlined else [],
            repetitions=_outline_views(judged, judged.repetitions) if outlined else [],
            warnings=(
                []
                if all(RunState(trial.state).ended for trial in judged.trials)
                else self._runs.node_warnings(sweep.spec["run"])
            ),
            notes=[
                *([judged.held_out_note] if judged.held_out_note else []),
                *trunk_note(judged.trunk),
                *progress_note(sweep, len(judged.trials)),
                *saved_note(self._store, judged.trials),
                *notes(
                    judged.standings,
                    verdict,
                    metric=metric,
                    tried=_tried(judged.trials),
                    unit="step" if judged.spans else "tokens",
                ),
                *seed_notes(verdict.points, noise, metric, sweep.stored.goal),
                *(self._task_notes(verdict.points) if fields["state"] == "finished" else []),
            ],
        )
        if not fitted:
            return detail
        hours = 0.0 if detail.used is None else detail.used.gpu_hours
        return with_advice(detail, verdict, sweep.stored.goal, hours / len(judged.trials))

    def _fields(self, sweep: SweepRow, judged: _Judged) -> dict[str, Any]:
        verdict = judged.verdict
        best = next((point for point in verdict.points if verdict.best in point.run_ids), None)
        counts = Counter(status.state for status in judged.standings)
        remaining = trials_remaining(sweep, len(judged.trials))
        return {
            **shared_fields(sweep, SweepView),
            "method": sweep.stored.method,
            "metric": sweep.stored.metric,
            "goal": sweep.stored.goal,
            "parameters": list(_tried(judged.trials)),
            "counts": dict(counts),
            "trials_remaining": remaining,
            "state": sweep_state(counts, remaining, judged.trunk),
            "best_run_id": verdict.best,
            "best_value": best.mean if best else None,
            "compared_at_step": verdict.step if judged.spans else None,
            "compared_at_tokens": verdict.step
            if verdict.step is None or judged.spans is None
            else _tokens_at(judged.spans, verdict.step),
            "best_parameters": dict(best.parameters) if best else None,
            "held_out": verdict.held_out.verdict if verdict.held_out else None,
            "held_out_note": judged.held_out_note,
            "used": used_view(self._store.attempts.use(judged.run_ids)),
        }

    def _task_notes(self, points: Sequence[Point]) -> list[str]:
        """Note if tasks and loss, measured on the same items and tokens, prefer other points."""
        ids = [run_id for point in points for run_id in point.run_ids]
        latest = self._store.series.latest(ids, MEASURED)
        known = {run_id: own for run_id, own in latest.items() if {*MEASURED} <= own.keys()}
        last = max((own[TASKS].step for own in known.values()), default=0)
        there = {r: own for r, own in known.items() if own[TASKS].step == own[LOSS].step == last}
        sets = [{*self._store.events.held_out(there, metric).values()} for metric in (LOSS, TASKS)]
        scored = {}
        for point in points:
            own = [there[run_id] for run_id in point.run_ids if run_id in there]
            of_each = [[float(one[metric].value) for one in own] for metric in MEASURED]
            if own and all(map(math.isfinite, chain(*of_each))):
                scored[formats.point(point.parameters)] = of_each
        sentence = disagreement(scored) if max(map(len, sets)) == 1 else None
        return [] if sentence is None else [sentence]

    def _noise_elsewhere(self, sweep: SweepRow) -> NoiseView | None:
        """Return the noise between seeds in other sweeps of the same training."""
        kind = _same_training(sweep.spec["run"])
        noise = pooled_noise(
            point.values
            for other in self._store.sweeps.beside(sweep, _OTHERS)
            if _same_training(other.spec["run"]) == kind
            for point in self._judge(other).verdict.points
        )
        return None if noise is None else NoiseView(**asdict(noise))

    def trials_remaining(self, sweep: SweepRow) -> int:
        """Return how many points TPE has yet to choose."""
        return trials_remaining(sweep, self._store.sweeps.trial_count(sweep.id))

    def _judge(self, sweep: SweepRow) -> _Judged:
        trials = self._store.sweeps.outlines(sweep.id)
        repetitions = self._store.sweeps.repetitions(trials)
        metric = sweep.stored.metric
        both = [*trials, *repetitions]
        latest = self._store.series.latest([one.run_id for one in both], [metric])
        newest = {run_id: found[metric] for run_id, found in latest.items() if metric in found}
        spans = {one.run_id: one.spans for one in both}
        alike = len({_pace(trial.spans) for trial in trials}) <= 1
        statuses = [
            TrialStatus(
                run_id=one.run_id,
                parameters=one.parameters,
                state=self._state(one, last := newest.get(one.run_id), metric),
                value=last.value if last else None,
                step=(last.step if alike else _tokens_at(one.spans, last.step)) if last else None,
                cause=one.cause,
                repeats=one.repeats,
            )
            for one in both
        ]
        standings = statuses[: len(trials)]

        def value_at(run_id: str, step: int) -> float | None:
            if alike:
                found = self._store.series.read(run_id, metric, exact=True, first=step, last=step)
            else:  # The newest value within that many tokens.
                last = steps_within(spans[run_id], step)
                found = self._store.series.read(run_id, metric, exact=True, last=last)
            return found.y[-1] if found.y else None

        goal = sweep.stored.goal
        steps = {run_id: last.step for run_id, last in newest.items()}
        held_out = self._store.events.held_out(steps, metric) if is_measured(metric) else None
        verdict = SweepVerdict(None, {}, {})  # Of a campaign: its trials differ in size.
        if sweep.stored.method != "campaign":
            verdict = rank(standings, goal, value_at, held_out, statuses[len(trials) :])
        note = None
        # Trials are alike in what they record: where none has a digest, a comparison says so.
        if verdict.held_out is not None and verdict.held_out.sets:
            names = {trial.run_id: f"trial {trial.number}" for trial in trials}
            note = verdict.held_out.note(metric, names, "trials")
        of_each = trials[0].spans if trials and alike else None
        staged = (sweep.spec["run"].get("train") or {}).get("stages")
        trunk = self._store.sweeps.trunk(sweep.id) if staged else None
        return _Judged(
            trials, repetitions, standings, verdict, newest, of_each, held_out or {}, note, trunk
        )

    def _state(self, one: TrialOutline, newest: LatestValue | None, metric: str) -> str:
        """Return the state of a trial: it is not completed before the metric's last evaluation."""
        if one.state != RunState.COMPLETED or task_of(metric) is None:
            return one.state
        if newest is not None and newest.step >= (one.total_steps or 0):
            return one.state
        waits = awaited(evaluated_run(self._store, one.run_id), OF_TASKS)
        return RunState.RUNNING.value if waits else one.state


def _tokens_at(spans: Sequence[StageSpan], step: int) -> int:
    return span_of(spans, step).tokens_at(step)


def _pace(spans: Sequence[StageSpan]) -> tuple[tuple[int, int, int], ...]:
    """Return what is equal for runs that have as many tokens at each step."""
    return tuple((span.first, span.tokens, span.batch.tokens_per_step) for span in spans)


def _trial_views(
    judged: _Judged, runs: Mapping[str, RunView], trials: Sequence[TrialOutline]
) -> list[TrialView]:
    return [
        TrialView(
            parameters=trial.parameters,
            run=runs[trial.run_id],
            held_out=judged.held_out.get(trial.run_id),
            **vars(standing),
        )
        for trial, standing in zip(trials, _standings(judged, trials), strict=True)
    ]


def _standings(judged: _Judged, trials: Sequence[TrialOutline]) -> list[StandingView]:
    verdict = judged.verdict
    return [
        StandingView(
            number=trial.number,
            value=last.value if (last := judged.newest.get(trial.run_id)) else None,
            step=last.step if last else None,
            compared_value=verdict.values.get(trial.run_id),
            rank=verdict.ranks.get(trial.run_id),
            best=trial.run_id == verdict.best,
        )
        for trial in trials
    ]


def _outline_views(judged: _Judged, trials: Sequence[TrialOutline]) -> list[TrialView]:
    runs = {
        trial.run_id: RunView(
            id=trial.run_id,
            name=trial.name,
            project=trial.project,
            state=trial.state,
            cause=trial.cause,
            total_steps=trial.total_steps or 0,
            tokens_per_step=trial.spans[-1].batch.tokens_per_step,
            created_at=trial.created_at,
        )
        for trial in trials
    }
    return _trial_views(judged, runs, trials)


def _tried(trials: Sequence[TrialOutline]) -> dict[str, list[Any]]:
    """Return the value of each trial, by parameter."""
    tried: dict[str, list[Any]] = {}
    for trial in trials:
        for path, value in trial.parameters.items():
            tried.setdefault(path, []).append(value)
    return tried


def _same_training(run: dict[str, Any]) -> dict[str, Any]:
    """Return what is trained, without learning rate and seed."""

    def kept(value: Any) -> Any:
        if not isinstance(value, dict):
            return value
        return {k: kept(v) for k, v in value.items() if not is_rate(k) and not is_seed(k)}

    return {part: kept(run.get(part)) for part in ("train", "trainer")}
