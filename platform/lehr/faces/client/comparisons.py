"""``Comparison``: a comparison of runs as Python objects."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any, Self

from pydantic import PrivateAttr, TypeAdapter

from lehr.base.formats import loss
from lehr.faces.client.notebook import Drawing, compared_at, comparison_frame, import_pandas
from lehr.schemas.comparisons import ComparisonView
from lehr.schemas.streams import Series

if TYPE_CHECKING:
    import pandas as pd

    from lehr.faces.client.transport import Transport

_POINTS = 500


class Comparison(ComparisonView):
    """Differences between runs, and their metric at equal step, tokens, time or FLOPs.

    ``notes`` lists limits of the comparison. If the runs were evaluated on different held-out sets,
    that comes first, and a metric under ``val/`` has no delta.
    """

    _transport: Transport = PrivateAttr()

    @classmethod
    def read(cls, transport: Transport, answer: bytes) -> Self:
        return cls.model_validate_json(answer, context=transport)

    def model_post_init(self, context: Any) -> None:
        self._transport = context

    def frame(self) -> pd.DataFrame:
        """Return a pandas frame: one row per run, the baseline first, with what may change the
        outcome.
        """
        import_pandas("frame()")
        return comparison_frame(self)

    def curves(self) -> list[Series]:
        """Return the metric of each run over the comparison's x axis, in the runs' order."""
        found = []
        for run_id in self.runs:
            axis = "step" if self.x_axis == "end" else self.x_axis
            params = {"name": self.metric, "x": axis, "points": _POINTS}
            answer = self._transport.get(f"/runs/{run_id}/series", params)
            [series] = TypeAdapter(list[Series]).validate_json(answer)
            found.append(series)
        return found

    def plot(self) -> Drawing:
        """Plot the metric of each run over the comparison's x axis."""
        from lehr.analysis.figure import Axis, curves_figure
        from lehr.analysis.figure_svg import draw

        names = [one.name or one.run_id for one in self.results]
        curves = curves_figure(self.metric, list(zip(names, self.curves(), strict=True)))
        drawn = draw(replace(curves, x=Axis(self.x_axis)), self.metric)
        return Drawing([drawn], self.held_out_note or "")

    def __repr__(self) -> str:
        text = f"{len(self.runs)} runs by {self.metric}{compared_at(self)}"
        return f"<Comparison of {text}: {self.held_out_note or self._deltas()}>"

    __str__ = __repr__

    def _deltas(self) -> str:
        base, *others = self.results
        parts = [f"{base.name or base.run_id} {loss(base.value)}"]
        for one in others:
            delta = "" if one.delta is None else f" ({one.delta:+.4g})"
            parts.append(f"{one.name or one.run_id} {loss(one.value)}{delta}")
        return ", ".join(parts)

    def _repr_html_(self) -> str | None:
        from lehr.faces.client.notebook import comparison_html

        return comparison_html(self)
