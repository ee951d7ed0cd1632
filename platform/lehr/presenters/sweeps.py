"""Views of sweeps: their trials, ranked, with notes on the result."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal

from lehr.analysis.held_out import is_measured
from lehr.analysis.sweep_result import parameter_choice, sweep_fit
from lehr.control import sweeps as decisions
from lehr.control.lifecycle import RunState
from lehr.presenters.ranking import SweepVerdict, TrialStatus, notes, rank
from lehr.presenters.seeds import noise as between_seeds
from lehr.presenters.seeds import notes as seed_notes
from lehr.schemas.sweeps import PointView, SweepDetail, SweepView, TrialView
from lehr.specs.sweep import SweepSpec

if TYPE_CHECKING:
    from lehr.presenters.runs import RunPresenter
    from lehr.store import Store
    from lehr.store.tables import RunRow, SweepRow, Trial


@dataclass(frozen=True)
class _Judged:
    trials: list[Trial]
    runs: dict[str, RunRow]
    standings: list[TrialStatus]
    """Trials whose batches differ are compared at equal tokens."""
    verdict: SweepVerdict
    steps: dict[str, int]
    """Step of each run's newest value."""
    tokens_per_step: int | None
    """None where the trials' differ, so that they are compared at equal tokens."""
    held_out: dict[str, str | None]
    """Digests by run; none where the metric is not measured on a held-out set."""
    held_out_note: str | None


class SweepPresenter:
    """Makes views of sweeps."""

    def __init__(self, store: Store, runs: RunPresenter) -> None:
        self._store = store
        self._runs = runs

    def views(self, sweeps: Sequence[SweepRow]) -> list[SweepView]:
        """Return the views in the same order."""
        return [SweepView(**_fields(sweep, self._judge(sweep))) for sweep in sweeps]

    def detail(self, sweep: SweepRow) -> SweepDetail:
        judged = self._judge(sweep)
        metric = sweep.spec["metric"]["name"]
        views = self._runs.views([judged.runs[trial.run_id] for trial in judged.trials])
        verdict = judged.verdict
        noise = between_seeds(verdict.points)
        detail = SweepDetail(
            **_fields(sweep, judged),
            points=[
                PointView(
                    parameters=dict(point.parameters),
                    run_ids=list(point.run_ids),
                    mean=point.mean,
                    spread=point.spread,
                    rank=point.rank,
                )
                for point in verdict.points
            ],
            noise=noise.deviation if noise else None,
            noise_band=noise.band if noise else None,
            spec=sweep.spec,
            trials=[
                TrialView(
                    number=trial.number,
                    parameters=trial.parameters,
                    run=view,
                    value=status.value,
                    step=judged.steps.get(trial.run_id),
                    compared_value=verdict.values.get(trial.run_id),
                    rank=verdict.ranks.get(trial.run_id),
                    best=trial.run_id == verdict.best,
                    held_out=judged.held_out.get(trial.run_id),
                )
                for trial, view, status in zip(judged.trials, views, judged.standings, strict=True)
            ],
            notes=[
                *([judged.held_out_note] if judged.held_out_note else []),
                *_progress(sweep, judged),
                *notes(
                    judged.standings,
                    verdict,
                    metric=metric,
                    tried=_tried(judged.trials),
                    unit="step" if judged.tokens_per_step else "tokens",
                ),
                *seed_notes(verdict.points, noise, metric),
            ],
        )
        # Before the end, trials are compared early in their training: too early for a fit.
        if detail.state != "finished" or not detail.parameters:
            return detail
        fit = sweep_fit(detail, parameter_choice(detail))
        return (
            detail
            if fit is None
            else detail.model_copy(update={"notes": [*detail.notes, *fit.notes()]})
        )

    def _judge(self, sweep: SweepRow) -> _Judged:
        trials = self._store.sweeps.trials(sweep.id)
        runs = {run.id: run for run in self._store.sweeps.runs(sweep.id)}
        metric = sweep.spec["metric"]["name"]
        latest = self._store.series.latest([trial.run_id for trial in trials], [metric])
        rates = {run_id: _tokens_per_step(run) for run_id, run in runs.items()}
        alike = len({rates[trial.run_id] for trial in trials}) <= 1
        standings, steps = [], {}
        for trial in trials:
            newest = latest.get(trial.run_id, {}).get(metric)
            if newest is not None:
                steps[trial.run_id] = newest.step
            standings.append(
                TrialStatus(
                    run_id=trial.run_id,
                    parameters=trial.parameters,
                    state=runs[trial.run_id].state,
                    value=newest.value if newest else None,
                    step=newest.step * (1 if alike else rates[trial.run_id]) if newest else None,
                )
            )

        def value_at(run_id: str, step: int) -> float | None:
            if alike:
                found = self._store.series.read(run_id, metric, exact=True, first=step, last=step)
            else:  # The newest value within that many tokens.
                last = step // rates[run_id]
                found = self._store.series.read(run_id, metric, exact=True, last=last)
            return found.y[-1] if found.y else None

        goal = sweep.spec["metric"]["goal"]
        held_out = self._store.events.held_out(steps) if is_measured(metric) else None
        verdict = rank(standings, goal, value_at, held_out)
        note = None
        if verdict.held_out is not None:
            names = {trial.run_id: f"trial {trial.number}" for trial in trials}
            note = verdict.held_out.note(metric, names, "trials")
        rate = rates[trials[0].run_id] if trials and alike else None
        return _Judged(trials, runs, standings, verdict, steps, rate, held_out or {}, note)


def _fields(sweep: SweepRow, judged: _Judged) -> dict[str, Any]:
    best = next((one for one in judged.standings if one.run_id == judged.verdict.best), None)
    counts = Counter(status.state for status in judged.standings)
    trials_remaining = _trials_remaining(sweep, judged)
    return {
        "id": sweep.id,
        "name": sweep.name,
        "project": sweep.project,
        "tags": sweep.tags,
        "method": sweep.spec["method"],
        "metric": sweep.spec["metric"]["name"],
        "goal": sweep.spec["metric"]["goal"],
        "parameters": list(_tried(judged.trials)),
        "counts": dict(counts),
        "trials_remaining": trials_remaining,
        "stopped": sweep.stopped,
        "state": _state(counts, trials_remaining),
        "best_run_id": best.run_id if best else None,
        "best_value": _best_value(judged, best),
        "compared_at_step": judged.verdict.step if judged.tokens_per_step else None,
        "compared_at_tokens": _in_tokens(judged),
        "best_parameters": _best_parameters(judged, best),
        "held_out": judged.verdict.held_out.verdict if judged.verdict.held_out else None,
        "held_out_note": judged.held_out_note,
        "created_at": sweep.created_at,
        "archived": sweep.archived,
    }


def _best_value(judged: _Judged, best: TrialStatus | None) -> float | None:
    """Return the best point's mean where points have several seeds, else the best trial's value."""
    if best is None:
        return None
    means = [p.mean for p in judged.verdict.points if best.run_id in p.run_ids]
    return means[0] if means else judged.verdict.values[best.run_id]


def _best_parameters(judged: _Judged, best: TrialStatus | None) -> dict[str, Any] | None:
    if best is None:
        return None
    of = [p.parameters for p in judged.verdict.points if best.run_id in p.run_ids]
    return dict(of[0] if of else best.parameters)


def _in_tokens(judged: _Judged) -> int | None:
    step = judged.verdict.step
    return None if step is None else step * (judged.tokens_per_step or 1)


def _tokens_per_step(run: RunRow) -> int:
    batch = run.spec["train"]["batch"]
    return int(batch["sequences"] * batch["sequence_length"])


def _trials_remaining(sweep: SweepRow, judged: _Judged) -> int:
    if sweep.spec["method"] != "tpe" or sweep.stopped is not None:
        return 0
    return decisions.trials_remaining(SweepSpec.model_validate(sweep.spec), len(judged.trials))


def _progress(sweep: SweepRow, judged: _Judged) -> list[str]:
    """Return the progress of the sweep, if its trials do not show all of it."""
    if sweep.stopped is not None:
        return [f"Stopped: {sweep.stopped}"]
    trials_remaining = _trials_remaining(sweep, judged)
    if trials_remaining:
        return [f"TPE has yet to choose {trials_remaining} of {sweep.spec['trials']} points."]
    return []


def _state(
    counts: Counter[str], trials_remaining: int
) -> Literal["waiting", "running", "finished"]:
    if all(RunState(state).ended for state in counts):
        return "running" if trials_remaining else "finished"
    return "waiting" if set(counts) <= {RunState.QUEUED, RunState.PAUSED} else "running"


def _tried(trials: Sequence[Trial]) -> dict[str, list[Any]]:
    tried: dict[str, list[Any]] = {}
    for trial in trials:
        for path, value in trial.parameters.items():
            values = tried.setdefault(path, [])
            if value not in values:
                values.append(value)
    return tried
