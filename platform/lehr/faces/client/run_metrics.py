"""Metrics, curves and use of nodes of a run."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any, Literal

from lehr.errors import NotFound
from lehr.faces.client.frames import import_pandas, need_plotly, series_frame
from lehr.faces.client.run_state import RunStateMethods
from lehr.schemas.streams import AlertView, EventView, MetricInfo, SampleView, Series

if TYPE_CHECKING:
    import pandas as pd

_NAMES_A_PART = 50
_POINTS_A_PART = 1_000_000
"""Half of what the server allows, since a run that trains has more by the time it answers."""


class RunMetricMethods(RunStateMethods):
    """A part of ``lehr.faces.client.runs.Run``: what it has recorded, except logs."""

    def metrics(self) -> list[MetricInfo]:
        return self._list("/metrics", MetricInfo)

    def series(
        self,
        *names: str,
        x: Literal["step", "tokens", "time"] = "step",
        points: int = 500,
        exact: bool = False,
        smoothing: float | None = None,
        superseded: bool = False,
    ) -> list[Series]:
        """Return curves, downsampled by the server unless ``exact``; all metrics when none is
        named.
        """
        options = {
            "x": x,
            "points": points,
            "exact": exact,
            "smoothing": smoothing,
            "superseded": superseded,
        }
        return [
            one
            for part in self._parts(names, exact=exact, points=points)
            for one in self._list("/series", Series, {"name": part, **options})
        ]

    def _parts(self, names: Sequence[str], *, exact: bool, points: int) -> Iterator[list[str]]:
        """Split the metrics (default: all) into what one answer may have."""
        if len(names) == 1:
            yield [*names]
            return
        known = {}
        if exact or not names:
            known = {metric.name: metric.points for metric in self.metrics()}
        part: list[str] = []
        total = 0
        for name in dict.fromkeys(names or known):
            count = known.get(name, 0) if exact else points
            if part and (len(part) == _NAMES_A_PART or total + count > _POINTS_A_PART):
                yield part
                part, total = [], 0
            part.append(name)
            total += count
        if part:
            yield part

    def history(self, *names: str) -> pd.DataFrame:
        """Return every point of the named metrics (default: all), one row per step.

        Exact, and the same on every call once the run has ended.

        Raises:
            NotFound: the run has no metric of that name.
        """
        import_pandas("history()")
        return series_frame(self.series(*names, exact=True))

    def plot(
        self,
        *names: str,
        x: Literal["step", "tokens", "time"] = "step",
        smoothing: float | None = None,
    ) -> Any:
        """Plot the named metrics with Plotly; by default the losses.

        Metrics with the same last part (``train/loss``, ``val/loss``) share a panel.

        Raises:
            NotFound: the run has no metric of that name, or none at all yet.
        """
        need_plotly("plot()")
        from lehr.analysis.figure import run_figures
        from lehr.analysis.plotly_figure import plotly_figure

        selected = names or self._losses()
        series = self.series(*selected, x=x, points=1000, smoothing=smoothing)
        return plotly_figure(run_figures(series), self.name)

    def _losses(self) -> list[str]:
        known = [metric.name for metric in self.metrics()]
        if not known:
            raise NotFound(f"run {self.name} has not logged any metric yet.")
        return [name for name in known if name in {"train/loss", "val/loss"}] or known[:1]

    def export(self, form: Literal["jsonl", "parquet"] = "jsonl") -> bytes:
        """Return every point of every metric as the bytes of a file: one row per step, one
        column per metric.
        """
        return self._transport.get(f"/runs/{self.id}/export", {"format": form})

    def events(self) -> list[EventView]:
        return self._list("/events", EventView)

    def alerts(self) -> list[AlertView]:
        """Return what the diagnosis of the run's curves has found so far."""
        return self._list("/alerts", AlertView)

    def samples(self) -> list[SampleView]:
        return self._list("/samples", SampleView)
