"""Plotly figures for dashboard and notebooks, as plain values.

``*_data`` functions return JSON-ready dictionaries and need no Plotly. The dashboard draws them in
the page's own colours, by the ``meta.role`` of each trace. ``sweep_figure`` and ``curves_figure``
wrap them for notebooks.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from lehr import formats
from lehr.analysis.colours import slots, stroke
from lehr.analysis.plotly_text import literal
from lehr.analysis.sweep_result import (
    is_number,
    outcome,
    parameter_choice,
    sweep_fit,
    sweep_verdict,
)
from lehr.analysis.sweep_traces import (
    JsonObject,
    best_trace,
    ended_traces,
    fit_shapes,
    fit_traces,
    pending_traces,
    ranked_traces,
)

if TYPE_CHECKING:
    from lehr.schemas.streams import Series
    from lehr.schemas.sweeps import SweepDetail, TrialView

_MOST_TICKS = 12
_STRIP: JsonObject = {
    "domain": [0.88, 1],
    "type": "category",
    "categoryorder": "array",
    "categoryarray": ["stopped", "diverged"],
    "range": [-0.7, 1.7],
    "showgrid": False,
}
"""The axis of trials that ended without a value to compare: a strip above the values, by how they
ended. Their height must not look like a value.
"""


def sweep_figure_data(sweep: SweepDetail, parameter: str | None = None) -> JsonObject:
    """Return the sweep's metric against one parameter: points, the best, the fit, divergence."""
    parameter = parameter_choice(sweep, parameter)
    trials = [trial for trial in sweep.seeded if parameter in trial.parameters]
    numeric = all(is_number(trial.parameters[parameter]) for trial in trials)
    logarithmic = numeric and all(trial.parameters[parameter] > 0 for trial in trials)
    ranked = [trial for trial in trials if outcome(trial) == "ranked"]
    losses = [trial.compared_value for trial in ranked if trial.compared_value is not None]
    fit = sweep_fit(sweep, parameter) if numeric else None
    data: list[JsonObject] = []
    if fit is not None and fit.curves is not None:
        data += fit_traces(fit.curves)
    data += ranked_traces(sweep, parameter, ranked)
    data += pending_traces(sweep, parameter, trials)
    ended = ended_traces(sweep, parameter, trials)
    data += ended
    best = [trial for trial in ranked if trial.best]
    if best:
        data.append(best_trace(parameter, best, trials if numeric else ()))
    layout: JsonObject = {
        "xaxis": _x_axis(parameter, trials, numeric=numeric, logarithmic=logarithmic),
        "yaxis": {
            "title": {"text": literal(_y_title(sweep))},
            "type": "log" if losses and min(losses) > 0 else "linear",
            "exponentformat": "e",
            **_y_range(data, ended=bool(ended)),
        },
        **({"yaxis2": _STRIP} if ended else {}),
        "shapes": fit_shapes(fit, numeric=numeric),
        "showlegend": len({trace.get("name") for trace in data}) > 1,
        "legend": {"orientation": "h", "x": 0, "y": 1.02, "yanchor": "bottom"},
        "margin": {"l": 64, "r": 16, "t": 36, "b": 56},
        "hovermode": "closest",
    }
    return {"data": data, "layout": layout}


def curves_figure_data(metric: str, series: Sequence[tuple[str, Series]]) -> JsonObject:
    """Return one metric of several runs; ``series`` pairs each run's label with its points."""
    given = slots(one.run_id for _, one in series)
    axis = series[0][1].x_axis if series else "step"
    data = []
    for label, one in series:
        look = stroke(given[one.run_id])
        data.append(
            {
                "type": "scatter",
                "mode": "lines",
                "name": literal(label),
                "x": list(one.x),
                "y": [_json_number(value) for value in one.y],
                "line": {"color": look.colour, "dash": look.dash, "width": 1.75},
                "meta": {"role": "run", "run": one.run_id},
            }
        )
    layout: JsonObject = {
        "xaxis": {"title": {"text": "seconds" if axis == "time" else axis}},
        "yaxis": {"title": {"text": literal(metric)}},
        "hovermode": "x unified",
        "showlegend": len(data) > 1,
        "margin": {"l": 64, "r": 16, "t": 24, "b": 48},
    }
    return {"data": data, "layout": layout}


def sweep_figure(sweep: SweepDetail, parameter: str | None = None) -> Any:
    """Return ``sweep_figure_data`` as a plotly Figure, with the verdict as its title."""
    import plotly.graph_objects as go

    chosen = parameter_choice(sweep, parameter)
    figure = go.Figure(sweep_figure_data(sweep, chosen))
    figure.update_layout(
        title={"text": literal(sweep_verdict(sweep, chosen)), "font": {"size": 14}},
        template="plotly_white",
        margin={"t": 84},
    )
    return figure


def curves_figure(metric: str, series: Sequence[tuple[str, Series]]) -> Any:
    """Return ``curves_figure_data`` as a plotly Figure."""
    import plotly.graph_objects as go

    figure = go.Figure(curves_figure_data(metric, series))
    figure.update_layout(template="plotly_white")
    return figure


def run_figure(name: str, series: Sequence[Series]) -> Any:
    """Return metrics of one run as a plotly Figure: a panel for each last part of their names."""
    from plotly.subplots import make_subplots

    panels: dict[str, list[Series]] = {}
    for one in series:
        panels.setdefault(one.name.rpartition("/")[2], []).append(one)
    figure = make_subplots(rows=len(panels), shared_xaxes=True, vertical_spacing=0.06)
    for row, (what, members) in enumerate(panels.items(), start=1):
        for one in members:
            look = stroke(len(figure.data))
            figure.add_scatter(
                x=list(one.x),
                y=[_json_number(value) for value in one.y],
                name=literal(one.name),
                mode="lines" if len(one.x) > 1 else "markers",
                line={"color": look.colour, "dash": look.dash, "width": 1.75},
                row=row,
                col=1,
            )
        title = members[0].name if len(members) == 1 else what
        figure.update_yaxes(title_text=literal(title), row=row)
    axis = series[0].x_axis if series else "step"
    figure.update_xaxes(title_text="seconds" if axis == "time" else axis, row=len(panels))
    return figure.update_layout(
        title={"text": literal(name), "font": {"size": 14}},
        template="plotly_white",
        hovermode="x unified",
        height=max(360, 220 * len(panels)),
        margin={"l": 64, "r": 16, "t": 48, "b": 48},
    )


# --- axes -----------------------------------------------------------------------------------


def _y_range(data: Sequence[JsonObject], *, ended: bool) -> JsonObject:
    """Return the part of the figure for values; without any, an axis without numbers."""
    place: JsonObject = {"domain": [0, 0.84]} if ended else {}
    values = [
        trace
        for trace in data
        if trace.get("yaxis") != "y2" and any(is_number(y) for y in trace["y"])
    ]
    return place if values else {**place, "showticklabels": False, "showgrid": False}


def _x_axis(
    parameter: str, trials: Sequence[TrialView], *, numeric: bool, logarithmic: bool
) -> JsonObject:
    axis: JsonObject = {"title": {"text": literal(parameter)}}
    if not numeric:
        return {**axis, "type": "category"}
    values = sorted({trial.parameters[parameter] for trial in trials})
    axis["type"] = "log" if logarithmic else "linear"
    if values:
        axis["range"] = _padded(values[0], values[-1], logarithmic=logarithmic)
    if 0 < len(values) <= _MOST_TICKS:
        # Label the tried values themselves instead of the decades between them.
        axis["tickvals"] = values
        axis["ticktext"] = [formats.parameter(value, parameter) for value in values]
    return axis


def _padded(low: float, high: float, *, logarithmic: bool) -> list[float]:
    """Return the range of the tried values with some room at both ends, as Plotly writes it."""
    if logarithmic:
        low, high = math.log10(low), math.log10(high)
    room = 0.06 * (high - low) or (0.3 if logarithmic else 0.1 * abs(low) or 1.0)
    return [low - room, high + room]


def _y_title(sweep: SweepDetail) -> str:
    if sweep.compared_at_step is None:
        return sweep.metric
    return f"{sweep.metric} at step {sweep.compared_at_step:,}"


def _json_number(value: float) -> float | None:
    return value if math.isfinite(value) else None
