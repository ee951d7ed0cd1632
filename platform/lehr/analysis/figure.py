"""A figure as a value: axes, points, bands and marks, in the colours of runs.

``figure_svg`` draws it, for pages, reports and notebooks alike, and does not decide what it shows.
"""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Literal

if TYPE_CHECKING:
    from lehr.schemas import streams
    from lehr.schemas.runs import TrainStage


PALETTE = (
    "#6666bb",
    "#ee4488",
    "#005544",
    "#aa8866",
    "#cc66ee",
    "#0099aa",
    "#663311",
    "#113399",
    "#777744",
    "#994488",
)
"""Ten colours that colour-blind people can distinguish (none is a grey or near the red of failures,
and each has a contrast of 3:1 with the page). Runs of the same colour differ in their dashes. The
dashboard has the same rule in ``static/js/colour.js``; its unit tests measure the distances.
"""
COLOURS = len(PALETTE)
Dash = Literal["solid", "dash", "dashdot", "dot"]
DASHES: tuple[Dash, ...] = ("solid", "dash", "dashdot", "dot")


@dataclass(frozen=True)
class Stroke:
    colour: str
    dash: Dash


def slot(run_id: str) -> int:
    """Return a run's own colour: FNV-1a over its id."""
    value = 0x811C9DC5
    for byte in run_id.encode():
        value = ((value ^ byte) * 0x01000193) & 0xFFFFFFFF
    return value % COLOURS


def slots(run_ids: Iterable[str]) -> dict[str, int]:
    """Return a slot for each of the runs shown together: its own colour, with another dash if
    others have that colour. Their order does not matter; beyond four of a colour, dashes repeat.
    """
    taken = [0] * COLOURS
    given: dict[str, int] = {}
    for run_id in sorted(set(run_ids)):
        own = slot(run_id)
        given[run_id] = own + COLOURS * (taken[own] % len(DASHES))
        taken[own] += 1
    return given


def stroke(index: int) -> Stroke:
    return Stroke(PALETTE[index % COLOURS], DASHES[index // COLOURS % len(DASHES)])


_ALONG = ("#440154", "#482878", "#3e4989", "#31688e", "#26828e", "#1f9e89", "#35b779")
_END = 5.35
"""Where the colours of numbers end on a light page: beyond, their contrast is too small."""
_ABSENT, _BROKEN = "#6e7781", "#c2281b"


def scale_of(values: Iterable[Any]) -> Callable[[Any], str]:
    """Return what gives each of these values its colour, as the dashboard's ``scaleOf`` does."""
    known = [value for value in values if value is not None]
    ordered = all(isinstance(one, int | float) and not isinstance(one, bool) for one in known)
    numbers = [value for value in known if ordered and math.isfinite(value)]
    low, high = min(numbers, default=0.0), max(numbers, default=0.0)
    bend = math.log if low > 0 and high / low >= 4 else float
    taken: dict[str, int] = {}
    for word in sorted({_text(value) for value in known}):
        own = slot(word)
        dashed = range(COLOURS * len(DASHES))
        free = ((own + i) % COLOURS + i // COLOURS * COLOURS for i in dashed)
        taken[word] = next((one for one in free if one not in taken.values()), own)

    def colour(value: Any) -> str:
        if value is None:
            return _ABSENT
        if not ordered:
            return PALETTE[taken[_text(value)] % COLOURS]
        if not math.isfinite(value):
            return _BROKEN
        share = 0.5 if low == high else (bend(value) - bend(low)) / (bend(high) - bend(low))
        i = min(len(_ALONG) - 2, int(share * _END))
        ends = ([int(end[n : n + 2], 16) for n in (1, 3, 5)] for end in _ALONG[i : i + 2])
        mixed = (a + (b - a) * (share * _END - i) for a, b in zip(*ends, strict=True))
        return "#{:02x}{:02x}{:02x}".format(*(math.floor(part + 0.5) for part in mixed))

    return colour


def _text(value: Any) -> str:
    return value if isinstance(value, str) else json.dumps(value, separators=(",", ":"))


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
    paint: str | None = None
    """A colour of its own, as #rrggbb."""
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
        if self.paint is not None:
            return self.paint
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


def curves_figure(
    metric: str,
    series: Sequence[tuple[str, streams.Series]],
    stages: Sequence[TrainStage] = (),
    values: Mapping[str, Any] | None = None,
) -> Figure:
    """Draw one metric of several runs; ``series`` pairs each run's label with its points.

    ``stages`` are those of a single run, and marked. Colours show ``values``, by run, if there are
    any.
    """
    runs = slots(curve.run_id for _, curve in series)
    drawn = _curves(metric, [(label, curve, runs[curve.run_id]) for label, curve in series], stages)
    if not values or all(value is None for value in values.values()):
        return drawn
    colour = scale_of(values.values())
    pairs = zip(drawn.points, series, strict=True)
    return replace(
        drawn,
        points=[
            replace(points, paint=colour(values.get(one.run_id))) for points, (_, one) in pairs
        ],
    )


def run_figures(
    series: Sequence[streams.Series], stages: Sequence[TrainStage] = ()
) -> list[Figure]:
    """Draw metrics of one run: a figure for each last part of their names. Stages are marked."""
    panels: dict[str, list[tuple[str, streams.Series, int]]] = {}
    for slot, curve in enumerate(series):
        panels.setdefault(curve.name.rpartition("/")[2], []).append((curve.name, curve, slot))
    return [
        _curves(curves[0][0] if len(curves) == 1 else name, curves, stages)
        for name, curves in panels.items()
    ]


def _curves(
    metric: str,
    curves: Sequence[tuple[str, streams.Series, int]],
    stages: Sequence[TrainStage],
) -> Figure:
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
    marks = [
        Mark(one.first_step if axis == "step" else one.tokens, one.name)
        for one in stages[1:]
        if axis != "time"
    ]
    return Figure(Axis("seconds" if axis == "time" else axis), Axis(metric), points, marks=marks)
