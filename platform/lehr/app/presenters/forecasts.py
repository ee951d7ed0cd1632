"""Forecasts of live runs; what pruning saves, and what a forecast would have stopped wrongly."""

from __future__ import annotations

import math
import time
from collections.abc import Sequence

from lehr.analysis.batches import HeldOut, is_measured
from lehr.analysis.forecast import FEWEST, forecast, planned
from lehr.base import formats
from lehr.cluster.group_loader import reports_of
from lehr.control.lifecycle import RunState
from lehr.control.search import SearchTrial, replay
from lehr.schemas.runs import ForecastView
from lehr.schemas.sweeps import AuditView
from lehr.specs.search import ForecastPruning
from lehr.store import Store
from lehr.store.records.sweeps import TrialOutline
from lehr.store.tables import RunRow, SweepRow

_METRICS = ("val/loss", "train/loss")  # The first with enough values is forecast.
_COUNTED = ("trainings", "stopped", "stopped_best", "gpu_hours", "saved_gpu_hours")


def live_forecast(store: Store, run: RunRow) -> ForecastView | None:
    """Return the forecast of a live run; None for another, and before its first loss."""
    logged = store.series.latest([run.id], _METRICS).get(run.id, {})
    names = [name for name in _METRICS if name in logged]
    if not RunState(run.state).reports or not names:
        return None
    curves = [(name, store.series.read(run.id, name, points=2_000)) for name in names]
    name, curve = next((own for own in curves if len(own[1].step) >= FEWEST), curves[0])
    steps, losses, total = tuple(curve.step), tuple(curve.y), run.stored.total_steps
    found = vars(forecast(steps, losses, total, *planned(run.stored)))
    return ForecastView(metric=name, step=total, **found)


def saved_note(store: Store, trials: Sequence[TrialOutline]) -> list[str]:
    """Return what pruning saved, by the hours that the pruned trials took for a step."""
    pruned = [t for t in trials if t.state == "pruned" and t.total_steps and t.last_step]
    made, whole = sum(t.last_step or 0 for t in pruned), sum(t.total_steps or 0 for t in pruned)
    if not made:
        return []
    hours = store.attempts.use([t.run_id for t in pruned]).hours
    after, saved = formats.share(made / whole), formats.gpu_hours(hours * (whole / made - 1))
    ended = f"Pruning ended {len(pruned)} of {len(trials)} trials, after {after} of their steps"
    return [f"{ended}. It saved {saved}, by the time that a step of theirs took."]


def audit_forecast(store: Store, rule: ForecastPruning, within_s: float = 10.0) -> AuditView:
    """Replay ``rule`` on the finished sweeps without pruning, newest first, for so many seconds."""
    until, left = time.monotonic() + within_s, 0
    counts = dict.fromkeys(_COUNTED, 0.0)
    for sweep in store.sweeps.page(limit=500, archived=None).items:
        trials = store.sweeps.outlines(sweep.id)
        done = [one for one in trials if one.state == "completed" and one.total_steps]
        ended = {one.state for one in trials} <= {"completed", "failed", "cancelled"}
        stored = sweep.stored  # The trials of a campaign are not there to win.
        is_loss = stored.goal == "minimize" and stored.metric.endswith(("loss", "bits_per_byte"))
        if len(done) > 1 and ended and is_loss and stored.method != "campaign":
            left += time.monotonic() > until
            for name, count in _replayed(store, sweep, done, rule).items() if not left else ():
                counts[name] += count
    trainings, stopped, best, hours, saved = counts.values()
    share = formats.share(saved / (hours or 1.0))
    text = (
        f"Of {trainings:,.0f} finished trainings, the rule forecast would have stopped "
        f"{stopped:,.0f}, saving {share} of their GPU-hours; {best:,.0f} of these were the best "
        f"of their sweep.{f' {left} older sweeps were left out for time.' if left else ''}"
    )
    none = "No sweep without pruning has finished yet."
    return AuditView.model_validate({**counts, "text": text if trainings else none})


def _replayed(
    store: Store, sweep: SweepRow, done: Sequence[TrialOutline], rule: ForecastPruning
) -> dict[str, float]:
    """Count as ``audit_forecast``; nothing where the losses were not measured alike."""
    metric, trials = sweep.stored.metric, []
    runs = [one.run_id for one in done if is_measured(metric)]
    digests = store.events.held_out(runs, metric)
    for one in done:
        reports = reports_of(store, one.run_id, metric, one.started_at)
        plan = planned(store.runs.get(one.run_id).stored)
        if reports and math.isfinite(reports[-1].value):
            own = SearchTrial(one.number, {}, "completed", reports, one.total_steps, plan)
            trials.append(own)
    if not trials or HeldOut.of(digests).verdict == "different":
        return {}
    steps = {verdict.number: verdict.step for verdict in replay(rule, trials)}
    used = store.attempts.use_by_run([one.run_id for one in done])
    hours = {one.number: used[one.run_id].hours for one in done}
    whole = {one.number: one.total_steps or 1 for one in done}
    saved = sum(hours[number] * (1 - step / whole[number]) for number, step in steps.items())
    best = min(trials, key=lambda trial: trial.reports[-1].value).number in steps
    counts = (len(done), len(steps), best, sum(hours.values()), saved)
    return dict(zip(_COUNTED, counts, strict=True))
