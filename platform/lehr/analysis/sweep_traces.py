"""The traces of a sweep's figure: points, means, the best, the fit, trials without a value."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from lehr import formats
from lehr.analysis.colours import stroke
from lehr.analysis.lr_fit import LrFit
from lehr.analysis.lr_posterior import Posterior
from lehr.analysis.plotly_text import literal
from lehr.analysis.sweep_result import is_number, outcome
from lehr.parameter_names import is_seed

if TYPE_CHECKING:
    from lehr.schemas.sweeps import SweepDetail, TrialView

JsonObject = dict[str, Any]

_BLUE, _RED, _GREY = "#3f90da", "#bd1f01", "#7d8f8d"


def ranked_traces(
    sweep: SweepDetail, parameter: str, trials: Sequence[TrialView]
) -> list[JsonObject]:
    """Return a trace for each combination of the other parameters."""
    groups: dict[str, list[TrialView]] = {}
    for trial in trials:
        groups.setdefault(_others(trial, parameter), []).append(trial)
    traces = []
    for index, (name, members) in enumerate(groups.items()):
        ordered = sorted(members, key=lambda trial: _order(trial.parameters[parameter]))
        slot = index if len(groups) > 1 else None
        several = len(groups) > 1 or len(set(_at(parameter, ordered))) < len(ordered)
        # A line or a mean through values of different held-out sets would compare them.
        if several and sweep.held_out != "different":
            if sweep.noise_band is not None:
                traces.append(_band_trace(parameter, ordered, sweep.noise_band))
            traces.append(_mean_trace(parameter, ordered, slot))
        traces.append(
            {
                **_points(sweep, parameter, ordered),
                "mode": "markers",
                "name": literal(name or sweep.metric),
                "y": [trial.compared_value for trial in ordered],
                "marker": {"size": 9, "color": _BLUE if slot is None else stroke(slot).colour},
                "meta": {"role": "points", "slot": slot},
            }
        )
    return traces


def _band_trace(parameter: str, trials: Sequence[TrialView], band: float) -> JsonObject:
    """Return a band around the means, as wide as the difference that chance may explain."""
    places = _values_by_place(parameter, trials)
    means = [math.fsum(values) / len(values) for values in places.values()]
    return {
        "type": "scatter",
        "mode": "lines",
        "name": "noise between seeds",
        "showlegend": False,
        "x": [*places, *reversed(places)],
        "y": [*(mean + band / 2 for mean in means), *(mean - band / 2 for mean in reversed(means))],
        "fill": "toself",
        "fillcolor": "rgba(128,128,128,0.18)",
        "line": {"width": 0},
        "hoverinfo": "skip",
        "meta": {"role": "noise"},
    }


def _mean_trace(parameter: str, trials: Sequence[TrialView], index: int | None) -> JsonObject:
    """Return the line through the means where several trials (seeds) share an x, with bars over
    their range.
    """
    places = _values_by_place(parameter, trials)
    means = {place: math.fsum(values) / len(values) for place, values in places.items()}
    colour = stroke(index).colour if index is not None else _BLUE
    return {
        "type": "scatter",
        "mode": "lines",
        "name": "mean",
        "showlegend": False,
        "x": list(means),
        "y": list(means.values()),
        "error_y": {
            "type": "data",
            "symmetric": False,
            "array": [max(places[place]) - mean for place, mean in means.items()],
            "arrayminus": [mean - min(places[place]) for place, mean in means.items()],
            "thickness": 1.25,
            "width": 5,
            "color": colour,
        },
        "line": {"width": 1, "color": colour},
        "hoverinfo": "skip",
        "meta": {"role": "points", "slot": index},
    }


def pending_traces(
    sweep: SweepDetail, parameter: str, trials: Sequence[TrialView]
) -> list[JsonObject]:
    """Return the trials whose values cannot be compared yet, hollow."""
    members = [trial for trial in trials if outcome(trial) == "pending"]
    if not members:
        return []
    look = {"size": 9, "color": _BLUE, "symbol": "circle-open", "line": {"width": 2}}
    return [
        {
            **_points(sweep, parameter, members),
            "mode": "markers",
            "name": "not compared yet",
            "y": [trial.value for trial in members],
            "marker": look,
            "meta": {"role": "pending"},
        }
    ]


def ended_traces(
    sweep: SweepDetail, parameter: str, trials: Sequence[TrialView]
) -> list[JsonObject]:
    """Return the trials that diverged or were stopped: crosses in the strip above the values."""
    found = []
    looks = (
        ("diverged", "diverged", "diverged", _RED),
        ("gave_up", "stopped", "failed or stopped", _GREY),
    )
    for role, row, name, colour in looks:
        members = [trial for trial in trials if outcome(trial) == role]
        if not members:
            continue
        found.append(
            {
                **_points(sweep, parameter, members),
                "mode": "markers",
                "name": name,
                "y": [row] * len(members),
                "yaxis": "y2",
                "marker": {
                    "size": 9,
                    "color": colour,
                    "symbol": "x-thin",
                    "line": {"width": 2, "color": colour},
                },
                "meta": {"role": role},
            }
        )
    return found


def _points(sweep: SweepDetail, parameter: str, trials: Sequence[TrialView]) -> JsonObject:
    """Return what all traces of trials share: x positions and identities."""
    return {
        "type": "scatter",
        "x": _at(parameter, trials),
        "text": [_hover(sweep, trial) for trial in trials],
        "hovertemplate": "%{text}<extra></extra>",
        "customdata": [trial.run.id for trial in trials],
    }


def best_trace(
    parameter: str, best: Sequence[TrialView], trials: Sequence[TrialView]
) -> JsonObject:
    tried = [trial.parameters[parameter] for trial in trials]

    def place(trial: TrialView) -> str:
        """Return where the label goes: near the frame it points inwards, or a narrow screen
        would cut it.
        """
        value = trial.parameters[parameter]
        if len(tried) > 1 and value == max(tried):
            return "top left"
        return "top right" if len(tried) > 1 and value == min(tried) else "top center"

    return {
        "type": "scatter",
        "mode": "markers+text",
        "name": "best",
        "x": _at(parameter, best),
        "y": [trial.compared_value for trial in best],
        "marker": {
            "size": 18,
            "color": "rgba(0,0,0,0)",
            "symbol": "circle",
            "line": {"width": 2, "color": _BLUE},
        },
        "text": [
            f"best {literal(formats.parameter(trial.parameters[parameter], parameter))}"
            for trial in best
        ],
        "textposition": [place(trial) for trial in best],
        "hoverinfo": "skip",
        "customdata": [trial.run.id for trial in best],
        "meta": {"role": "best"},
    }


def fit_traces(curves: Posterior) -> list[JsonObject]:
    """Return the band that holds the curve with 68 % at each rate, and its middle."""
    rates = curves.rates.tolist()
    low, high = (curves.mean - curves.spread).tolist(), (curves.mean + curves.spread).tolist()
    common = {"type": "scatter", "mode": "lines", "hoverinfo": "skip", "meta": {"role": "fit"}}
    return [
        {
            **common,
            "x": [*rates, *reversed(rates)],
            "y": [*high, *reversed(low)],
            "line": {"width": 0},
            "fill": "toself",
            "fillcolor": "rgba(125,143,141,0.2)",
            "showlegend": False,
        },
        {
            **common,
            "name": "fit, 68 %",
            "x": rates,
            "y": curves.mean.tolist(),
            "line": {"width": 1.5, "dash": "dash", "color": _GREY},
        },
    ]


def fit_shapes(fit: LrFit | None, *, numeric: bool) -> list[JsonObject]:
    shapes: list[JsonObject] = []
    if fit is None or not numeric:
        return shapes
    if fit.recommended is not None:
        shapes.append(
            {
                "type": "line",
                "name": "minimum",
                "xref": "x",
                "yref": "paper",
                "x0": fit.recommended,
                "x1": fit.recommended,
                "y0": 0,
                "y1": 1,
                "line": {"width": 1, "dash": "dot", "color": _GREY},
                "label": {
                    "text": f"probably {formats.scientific(fit.recommended, 2)}",
                    "textposition": "start",
                    "textangle": 0,
                    "xanchor": "left",
                    "font": {"size": 11},
                },
            }
        )
    above = [rate for rate in fit.diverged if rate > fit.best]
    if above:
        shapes.append(
            {
                "type": "rect",
                "name": "diverged",
                "xref": "x",
                "yref": "paper",
                "x0": min(above) / 1.15,
                "x1": max(above) * 1.15,
                "y0": 0,
                "y1": 1,
                "line": {"width": 0},
                "fillcolor": "rgba(189,31,1,0.07)",
                "layer": "below",
            }
        )
    return shapes


def _hover(sweep: SweepDetail, trial: TrialView) -> str:
    value = trial.compared_value if trial.compared_value is not None else trial.value
    shown = "—" if value is None else f"{value:.4g}"
    varied = "<br>".join(
        literal(f"{path} {formats.parameter(v, path)}") for path, v in trial.parameters.items()
    )
    step = sweep.compared_at_step if trial.compared_value is not None else trial.step
    at = f" at step {step:,}" if step is not None else ""
    if sweep.held_out == "different":
        at += f", held-out set {trial.held_out[:8] if trial.held_out else 'not known'}"
    name, metric = literal(trial.run.name), literal(sweep.metric)
    return f"<b>{name}</b><br>{varied}<br>{metric} {shown}{at}<br>{trial.run.state}"


def _values_by_place(parameter: str, trials: Sequence[TrialView]) -> dict[Any, list[float]]:
    """Return x position -> the compared values of the trials there."""
    places: dict[Any, list[float]] = {}
    for place, trial in zip(_at(parameter, trials), trials, strict=True):
        assert trial.compared_value is not None
        places.setdefault(place, []).append(trial.compared_value)
    return places


def _at(parameter: str, trials: Sequence[TrialView]) -> list[Any]:
    values = [trial.parameters[parameter] for trial in trials]
    return [literal(value) if isinstance(value, str) else value for value in values]


def _others(trial: TrialView, parameter: str) -> str:
    return ", ".join(
        f"{path.rpartition('.')[2]} {formats.parameter(value, path)}"
        for path, value in trial.parameters.items()
        if path != parameter and not is_seed(path)
    )


def _order(value: Any) -> tuple[int, float, str]:
    return (0, float(value), "") if is_number(value) else (1, 0.0, str(value))
