"""The figure of a sweep: its metric against one parameter, with the best, the fit, and the trials
that have no value to compare.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from lehr.analysis import figure_svg
from lehr.analysis.figure import STRIP, Axis, Band, Figure, FigurePoints, Mark, Role, Symbol
from lehr.analysis.lr_fit import LrFit
from lehr.analysis.sweep_result import (
    is_number,
    outcome,
    parameter_choice,
    parameter_importance,
    sweep_fit,
    sweep_verdict,
)
from lehr.base import formats
from lehr.base.names import is_seed
from lehr.schemas.sweeps import SweepDetail, SweepFigure, TrialView

_MOST_TICKS = 12
_MOST_LISTED = 8
"""Of more combinations of the other parameters, a legend would take the room of the values."""


def drawn_sweep(
    detail: SweepDetail,
    parameter: str | None,
    *,
    width: int = figure_svg.WIDTH,
    height: int = figure_svg.HEIGHT,
    links: bool = False,
) -> SweepFigure:
    """Draw the metric of a sweep, given with all trials, against ``parameter``, or against the one
    that matters most. The rest is as for ``figure_svg.draw``.

    Raises:
        NotFound: the sweep does not vary ``parameter``.
    """
    chosen = parameter_choice(detail, parameter)
    fit = sweep_fit(detail, chosen)
    verdict = sweep_verdict(detail, chosen)
    # The verdict has the interval, and the edge of this parameter.
    shown = {fit.range_note()} if fit is not None and "with 95 %" in verdict else set()
    if "may lie beyond" in verdict:
        shown |= {
            note for note in detail.notes if f"at the edge of the values tried: {chosen} " in note
        }
    if detail.held_out == "different":
        shown.add(detail.held_out_note)
    return SweepFigure(
        parameter=chosen,
        verdict=verdict,
        notes=[note for note in detail.notes if note not in shown],
        svg=figure_svg.draw(
            sweep_figure(detail, chosen, listed=0 if links else _MOST_LISTED),
            f"{detail.metric} of {detail.name} against {chosen}",
            width=width,
            height=height,
            links=links,
        ),
        importance=parameter_importance(detail),
    )


def sweep_figure(
    sweep: SweepDetail, parameter: str | None = None, *, listed: int = _MOST_LISTED
) -> Figure:
    """Draw the sweep's metric against ``parameter``, by default a learning rate if there is one.

    The legend has at most ``listed`` combinations of the others; 0: the page has its own key.

    Raises:
        NotFound: the sweep does not vary it.
    """
    parameter = parameter_choice(sweep, parameter)
    trials = [trial for trial in sweep.seeded if parameter in trial.parameters]
    by_outcome: dict[str, list[TrialView]] = {}
    for trial in trials:
        by_outcome.setdefault(outcome(trial), []).append(trial)
    ranked = by_outcome.get("ranked", [])
    x = _x_axis(parameter, [trial.parameters[parameter] for trial in trials])
    points, bands = _ranked(sweep, parameter, ranked, listed)
    marks: list[Mark] = []
    fit = sweep_fit(sweep, parameter) if x.kind != "category" else None
    if fit is not None:
        curve, band = _fit_curve(fit)
        points, bands, marks = [*curve, *points], [*band, *bands], _fit_marks(fit)
    waiting = [*by_outcome.get("pending", []), *by_outcome.get("silent", [])]
    points += _trials(sweep, parameter, waiting, "not compared yet", "pending", "hollow")
    diverged, ended = by_outcome.get("diverged", []), by_outcome.get("gave_up", [])
    points += _trials(sweep, parameter, diverged, "diverged", "diverged", "cross")
    points += _trials(sweep, parameter, ended, "failed or stopped", "stopped", "cross")
    best = [trial for trial in ranked if trial.best]
    for marked in _trials(sweep, parameter, best, "best", "best", "ring"):
        texts = [formats.parameter(trial.parameters[parameter], parameter) for trial in best]
        points.append(replace(marked, labels=[f"best {text}" for text in texts]))
    losses = [trial.compared_value for trial in ranked if trial.compared_value is not None]
    title = sweep.metric
    if sweep.compared_at_step is not None:
        title += f" at step {sweep.compared_at_step:,}"
    y = Axis(title, "log" if losses and min(losses) > 0 else "linear")
    return Figure(x, y, points, bands, marks)


def _x_axis(parameter: str, values: Sequence[Any]) -> Axis:
    if not all(is_number(value) for value in values):
        return Axis(parameter, "category")
    tried = sorted(set(values))
    ticks = tuple((value, formats.parameter(value, parameter)) for value in tried)
    return Axis(
        parameter,
        "log" if all(value > 0 for value in tried) else "linear",
        # Label the tried values themselves instead of the decades between them.
        ticks if len(ticks) <= _MOST_TICKS else (),
    )


def _ranked(
    sweep: SweepDetail, parameter: str, trials: Sequence[TrialView], listed: int
) -> tuple[list[FigurePoints], list[Band]]:
    """Return points for each combination of the other parameters. Where there are several, or
    several trials (seeds) share an x, a line leads through their means, with bars over their range.
    """
    groups: dict[str, list[TrialView]] = {}
    for trial in trials:
        groups.setdefault(_others(trial, parameter), []).append(trial)
    drawn: list[FigurePoints] = []
    bands: list[Band] = []
    for index, (name, members) in enumerate(groups.items()):
        ordered = sorted(members, key=lambda trial: _order(trial.parameters[parameter]))
        slot = index if len(groups) > 1 else None
        by_x: dict[Any, list[float]] = {}
        for trial in ordered:
            assert trial.compared_value is not None
            by_x.setdefault(trial.parameters[parameter], []).append(trial.compared_value)
        several = len(groups) > 1 or len(by_x) < len(ordered)
        # A line or a mean through values of different held-out sets would compare them.
        if several and len(ordered) > 1 and sweep.held_out != "different":
            x, columns = list(by_x), by_x.values()
            means = [math.fsum(values) / len(values) for values in columns]
            if sweep.noise_band is not None:
                half = sweep.noise_band / 2
                bands.append(Band(x, [m - half for m in means], [m + half for m in means]))
            ranges = [(min(values), max(values)) for values in columns]
            drawn.append(
                FigurePoints(
                    "mean", "points", x, means, slot=slot, width=1.0, ranges=ranges, listed=False
                )
            )
        label = name or sweep.metric
        points = _trials(sweep, parameter, ordered, label, "points", "dot", slot=slot)
        drawn += [replace(one, listed=len(groups) <= listed) for one in points]
    return drawn, bands


def _trials(
    sweep: SweepDetail,
    parameter: str,
    trials: Sequence[TrialView],
    name: str,
    role: Role,
    symbol: Symbol,
    slot: int | None = None,
) -> list[FigurePoints]:
    """Return a point for each trial; nothing without any."""
    values = [trial.value if role == "pending" else trial.compared_value for trial in trials]
    drawn = FigurePoints(
        name,
        role,
        [trial.parameters[parameter] for trial in trials],
        [] if role in STRIP else values,
        symbol,
        slot,
        texts=[_text(sweep, trial) for trial in trials],
        runs=[trial.run.id for trial in trials],
    )
    return [drawn] if trials else []


def _fit_curve(fit: LrFit) -> tuple[list[FigurePoints], list[Band]]:
    """Return the middle of the curve, and the band that holds 68 % of trials, where the trials lie
    as the fit expects.
    """
    curves = fit.curves
    if curves is None or curves.drawn.start == curves.drawn.stop:
        return [], []
    parts = (curves.rates, curves.mean, curves.mean - curves.spread, curves.mean + curves.spread)
    rates, mean, low, high = (part[curves.drawn].tolist() for part in parts)
    return [FigurePoints("fit, 68 % of trials", "fit", rates, mean, dash="dash", width=1.5)], [
        Band(rates, low, high)
    ]


def _fit_marks(fit: LrFit) -> list[Mark]:
    """Return the probable best rate, and the rates above the best at which trials diverged."""
    marks = []
    if fit.recommended is not None:
        label = f"probably {formats.scientific(fit.recommended, 2)}"
        marks.append(Mark(fit.recommended, label))
    if above := [rate for rate in fit.diverged if rate > fit.best]:
        marks.append(Mark(min(above) / 1.15, until=max(above) * 1.15))
    return marks


def _text(sweep: SweepDetail, trial: TrialView) -> str:
    value = trial.compared_value if trial.compared_value is not None else trial.value
    step = sweep.compared_at_step if trial.compared_value is not None else trial.step
    at = f" at step {step:,}" if step is not None else ""
    if sweep.held_out == "different":
        at += f", held-out set {trial.held_out[:8] if trial.held_out else 'not known'}"
    return "\n".join(
        (
            trial.run.name,
            *(f"{path} {formats.parameter(v, path)}" for path, v in trial.parameters.items()),
            f"{sweep.metric} {'—' if value is None else f'{value:.4g}'}{at}",
            trial.run.state,
        )
    )


def _others(trial: TrialView, parameter: str) -> str:
    others = {p: v for p, v in trial.parameters.items() if p != parameter and not is_seed(p)}
    return formats.point(others)


def _order(value: Any) -> tuple[int, float, str]:
    return (0, float(value), "") if is_number(value) else (1, 0.0, str(value))
