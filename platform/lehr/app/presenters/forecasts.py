"""Forecasts of live runs."""

from __future__ import annotations

from typing import TYPE_CHECKING

from lehr.analysis.forecast import FEWEST, forecast, planned
from lehr.control.lifecycle import RunState
from lehr.schemas.runs import ForecastView

if TYPE_CHECKING:
    from lehr.store import Store
    from lehr.store.tables import RunRow

_METRICS = ("val/loss", "train/loss")
"""The first that has enough values is forecast."""
_POINTS = 2_000


def live_forecast(store: Store, run: RunRow) -> ForecastView | None:
    """Return the forecast of a live run; None for another, and before its first loss."""
    logged = store.series.latest([run.id], _METRICS).get(run.id, {})
    names = [name for name in _METRICS if name in logged]
    if not RunState(run.state).reports or not names:
        return None
    curves = [(name, store.series.read(run.id, name, points=_POINTS)) for name in names]
    name, curve = next((own for own in curves if len(own[1].step) >= FEWEST), curves[0])
    total = run.stored.total_steps
    found = forecast(tuple(curve.step), tuple(curve.y), total, *planned(run.stored))
    return ForecastView(metric=name, step=total, **vars(found))
