"""A figure as a value: axes, points, bands and marks.

The server draws it as SVG for pages and reports (``figure_svg``), a notebook by Plotly
(``plotly_figure``). Neither decides what a figure shows.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

from lehr.analysis.colours import Dash, slots, stroke

if TYPE_CHECKING:
    from lehr.schemas import streams

Role = Literal["run", "points", "pending", "best", "diverged", "stopped", "fit"]
Symbol = Literal["dot", "hollow", "ring", "cross"]
_COLOURS: dict[Role, str] = {"diverged": "#bd1f01", "stopped": "#7d8f8d", "fit": "#7d8f8d"}
_BLUE = "#3f90da"
STRIP: tuple[Role, ...] = ("diverged", "stopped")
"""Rows of a strip above the values, for trials that ended without one: their height must not look
like a value.
"""


@dataclass(frozen=True)
class Axis:
    title: str
    kind: Literal["linear", "log", "category"] = "linear"
    ticks: tuple[tuple[float, str], ...] = ()
    """Values to label, each with its text; without any, round values are labelled."""


@dataclass(frozen=True)
class FigurePoints:
    """Points of one kind, with a symbol each or a line through them."""

    name: str
    """In the legend, which has each name once."""
    role: Role
    x: Sequence[float | str]
    y: Sequence[float | None]
    """A gap where there is none; empty for the roles of the strip."""
    symbol: Symbol | None = None
    """None: a line."""
    slot: int | None = None
    """The colour among those of runs; None: that of the role."""
    dash: Dash = "solid"
    width: float = 1.75
    ranges: Sequence[tuple[float, float]] = ()
    """The lowest and highest value at each x, drawn as bars."""
    texts: Sequence[str] = ()
    """What each point is, in lines."""
    labels: Sequence[str] = ()
    """Text beside each point."""
    runs: Sequence[str] = ()
    """The run of each point."""
    listed: bool = True
    """Whether the legend has it."""

    @property
    def colour(self) -> str:
        """The colour on a light page, as #rrggbb."""
        if self.slot is not None:
            return stroke(self.slot).colour
        return _COLOURS.get(self.role, _BLUE)


@dataclass(frozen=True)
class Band:
    """An area between two lines."""

    x: Sequence[float | str]
    low: Sequence[float]
    high: Sequence[float]


@dataclass(frozen=True)
class Mark:
    """A vertical line with a label; up to another x, an area."""

    x: float
    label: str = ""
    until: float | None = None


@dataclass(frozen=True)
class Figure:
    x: Axis
    y: Axis
    points: Sequence[FigurePoints]
    bands: Sequence[Band] = ()
    marks: Sequence[Mark] = ()

    @property
    def legend(self) -> list[FigurePoints]:
        """The points that a legend lists; none if it would have a single line."""
        names = {points.name: points for points in reversed(self.points) if points.listed}
        return [names[name] for name in reversed(names)] if len(names) > 1 else []


def curves_figure(metric: str, series: Sequence[tuple[str, streams.Series]]) -> Figure:
    """Draw one metric of several runs; ``series`` pairs each run's label with its points."""
    runs = slots(curve.run_id for _, curve in series)
    return _curves(metric, [(label, curve, runs[curve.run_id]) for label, curve in series])


def run_figures(series: Sequence[streams.Series]) -> list[Figure]:
    """Draw metrics of one run: a figure for each last part of their names."""
    panels: dict[str, list[tuple[str, streams.Series, int]]] = {}
    for slot, curve in enumerate(series):
        panels.setdefault(curve.name.rpartition("/")[2], []).append((curve.name, curve, slot))
    return [
        _curves(curves[0][0] if len(curves) == 1 else name, curves)
        for name, curves in panels.items()
    ]


def _curves(metric: str, curves: Sequence[tuple[str, streams.Series, int]]) -> Figure:
    axis = curves[0][1].x_axis if curves else "step"
    points = [
        FigurePoints(
            label,
            "run",
            list(curve.x),
            [y if math.isfinite(y) else None for y in curve.y],
            slot=slot,
            dash=stroke(slot).dash,
        )
        for label, curve, slot in curves
    ]
    return Figure(Axis("seconds" if axis == "time" else axis), Axis(metric), points)
