"""Figures as static SVG: the part of Plotly's format that ``lehr.analysis.figures`` uses.

Lines, markers, filled bands, error bars, vertical lines and rectangles over linear, logarithmic or
category axes. Text of users is escaped. There is no script and no style attribute; the page's style
sheet has the colours of axes and text.
"""

from __future__ import annotations

import itertools
import math
import sys
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from html import escape
from typing import Any

from lehr.analysis.plotly_text import plain

WIDTH, HEIGHT = 640, 280
_LEFT, _RIGHT, _TOP, _BOTTOM = 72, 14, 14, 48
_TICKS = 6
_DASHES = {"dash": "6 4", "dashdot": "8 3 2 3", "dot": "2 3"}
_BLUE = "#3f90da"
_SAME = 1e-9
"""Share of the values below which their range cannot be drawn."""
_TINY, _HUGE = 1e-290, 1e290
"""Bounds of values whose ticks can be computed."""

Point = tuple[float, float]


@dataclass(frozen=True)
class Entry:
    """A line of the legend."""

    name: str
    colour: str
    dashes: str
    """Lengths of dashes and gaps; empty for a solid line."""


@dataclass(frozen=True)
class _Axis:
    """Maps values to pixels."""

    kind: str
    low: float
    high: float
    first: float
    last: float
    categories: tuple[str, ...] = ()

    def at(self, value: Any) -> float | None:
        """Return the pixel of a value; None if the axis cannot show it."""
        number = self.number(value)
        if number is None:
            return None
        share = 0.5 if self.high == self.low else (number - self.low) / (self.high - self.low)
        return self.first + share * (self.last - self.first)

    def number(self, value: Any) -> float | None:
        return _number(value, self.kind, self.categories)


def draw(figure: Mapping[str, Any], title: str) -> str:
    """Return the figure as an ``svg`` element, which ``title`` describes to screen readers."""
    data = [trace for trace in figure["data"] if trace.get("x")]
    layout = figure["layout"]
    shapes = layout.get("shapes", ())
    x = _axis(layout.get("xaxis", {}), [trace["x"] for trace in data], _LEFT, WIDTH - _RIGHT)
    tall = [_with_bars(trace) for trace in data]
    y = _axis(layout.get("yaxis", {}), tall, HEIGHT - _BOTTOM, _TOP)
    parts = [
        f'<svg class="figure" role="img" viewBox="0 0 {WIDTH} {HEIGHT}">',
        f"<title>{escape(title)}</title>",
    ]
    if not data or x is None or y is None:
        parts.append(_text(WIDTH / 2, HEIGHT / 2, "no values", "middle"))
        return "".join([*parts, "</svg>"])
    parts += _grid(layout, x, y)
    parts += [text for shape in shapes for text in _shape(shape, x)]
    parts += [text for trace in data for text in _trace(trace, x, y)]
    return "".join([*parts, "</svg>"])


def legend(figure: Mapping[str, Any]) -> list[Entry]:
    """Return the legend's lines, each name once; none for a single trace."""
    found: dict[str, Entry] = {}
    for trace in figure["data"]:
        if trace.get("showlegend") is False or not trace.get("x"):
            continue
        name = str(trace.get("name", ""))
        line = trace.get("line", {})
        colour = line.get("color") or trace.get("marker", {}).get("color") or _BLUE
        if not str(colour).startswith("#"):
            colour = trace.get("marker", {}).get("line", {}).get("color", _BLUE)
        dashes = _DASHES.get(line.get("dash", "solid"), "")
        found.setdefault(name, Entry(plain(name), str(colour), dashes))
    return list(found.values()) if len(found) > 1 else []


# --- axes ----------------------------------------------------------------------------------


def _number(value: Any, kind: str, categories: Sequence[str] = ()) -> float | None:
    if kind == "category":
        return float(categories.index(str(value))) if str(value) in categories else None
    if value is None or isinstance(value, bool | str) or not math.isfinite(value):
        return None
    if kind == "log":
        return math.log10(value) if value > 0 else None
    return float(value) if abs(value) < _HUGE else None


def _axis(
    layout: Mapping[str, Any], values: Iterable[Sequence[Any]], first: float, last: float
) -> _Axis | None:
    kind = layout.get("type", "linear")
    together = list(itertools.chain.from_iterable(values))
    categories: tuple[str, ...] = ()
    if kind == "category":
        categories = tuple(dict.fromkeys(str(value) for value in together))
    numbers = [n for value in together if (n := _number(value, kind, categories)) is not None]
    if not numbers:
        return None
    low, high = min(numbers), max(numbers)
    size = max(abs(low), abs(high))
    margin = (high - low) * 0.04
    if margin <= size * _SAME:  # All are the same, as far as can be seen.
        margin = 0.5 if kind != "linear" or size < _TINY else size * 0.05
    return _Axis(kind, low - margin, high + margin, first, last, categories)


def _with_bars(trace: Mapping[str, Any]) -> list[Any]:
    bars = trace.get("error_y")
    values = list(trace["y"])
    if bars is None:
        return values
    above = [y + more for y, more in zip(values, bars["array"], strict=True) if y is not None]
    under = [y - less for y, less in zip(values, bars["arrayminus"], strict=True) if y is not None]
    return [*values, *above, *under]


# Rounded inwards: ten to the logarithm of the largest number is already too large.
_EXPONENTS = (math.log10(sys.float_info.min), math.log10(sys.float_info.max) - 1e-9)


def ticks(kind: str, low: float, high: float) -> list[float]:
    """Return round values between ``low`` and ``high``, which are exponents on a log axis."""
    if kind == "log":  # The margins of an axis may lie beyond the largest number.
        low, high = (min(max(one, _EXPONENTS[0]), _EXPONENTS[1]) for one in (low, high))
    if kind == "log" and high - low >= 1:
        every = max(1, round((high - low) / _TICKS))
        return [10.0**n for n in range(math.ceil(low), math.floor(high) + 1, every)]
    if kind == "log":
        inside = ticks("linear", 10**low, 10**high)
        return [value for value in inside if value > 0]
    span = high - low
    if span <= 0:
        return [low]
    rough = span / _TICKS
    scale: float = 10.0 ** math.floor(math.log10(rough))
    step = next(s * scale for s in (1, 2, 5, 10) if s * scale >= rough)
    first = math.ceil(low / step)
    return [n * step for n in range(first, math.floor(high / step) + 1)]


def _grid(layout: Mapping[str, Any], x: _Axis, y: _Axis) -> list[str]:
    base, right = HEIGHT - _BOTTOM, WIDTH - _RIGHT
    found = []
    for value, label in _labels(layout.get("yaxis", {}), y):
        at = y.at(value)
        if at is not None and _TOP <= at <= base:
            found.append(
                f'<line class="grid" x1="{_LEFT}" x2="{right}" y1="{at:.1f}" y2="{at:.1f}"/>'
            )
            found.append(_text(_LEFT - 6, at + 4, label, "end"))
    taken = -math.inf
    for value, label in _labels(layout.get("xaxis", {}), x):
        at = x.at(value)
        half = 3.6 * len(label)
        if at is None or not _LEFT <= at <= right or at - half < taken:
            continue  # Labels must not overlap.
        taken = at + half + 6
        found.append(f'<line class="grid" x1="{at:.1f}" x2="{at:.1f}" y1="{_TOP}" y2="{base}"/>')
        found.append(_text(min(max(at, half), WIDTH - half), base + 16, label, "middle"))
    found.append(f'<path class="axis" d="M{_LEFT} {_TOP}V{base}H{right}"/>')
    found.append(
        _text((_LEFT + right) / 2, HEIGHT - 8, _title(layout.get("xaxis", {})), "middle", "name")
    )
    name = escape(_title(layout.get("yaxis", {})))
    middle = (_TOP + base) / 2
    found.append(
        f'<text class="name" text-anchor="middle" transform="translate(13 {middle}) rotate(-90)">'
        f"{name}</text>"
    )
    return found


def _labels(layout: Mapping[str, Any], axis: _Axis) -> list[tuple[Any, str]]:
    if axis.kind == "category":
        names = [(name, plain(name)) for name in axis.categories]
        return [(name, text if len(text) < 24 else f"{text[:22]}...") for name, text in names]
    if layout.get("tickvals"):
        pairs = zip(layout["tickvals"], layout["ticktext"], strict=True)
        return [(value, str(text)) for value, text in pairs]
    return [(value, f"{value:.6g}") for value in ticks(axis.kind, axis.low, axis.high)]


def _title(layout: Mapping[str, Any]) -> str:
    return plain(str(layout.get("title", {}).get("text", "")))


# --- marks ---------------------------------------------------------------------------------


def _trace(trace: Mapping[str, Any], x: _Axis, y: _Axis) -> Iterable[str]:
    mode = trace.get("mode", "lines")
    pieces = _pieces(trace["x"], trace["y"], x, y)
    line, marker = trace.get("line", {}), trace.get("marker", {})
    colour = line.get("color", _BLUE)
    if trace.get("fill") == "toself":
        yield from (f'<path class="band" d="{_path(piece)}Z"/>' for piece in pieces)
        return
    if "lines" in mode:
        dashes = _DASHES.get(line.get("dash", "solid"))
        dash = f' stroke-dasharray="{dashes}"' if dashes else ""
        for piece in pieces:
            yield (
                f'<path fill="none" stroke="{escape(str(colour))}" '
                f'stroke-width="{line.get("width", 1.5)}"{dash} d="{_path(piece)}"/>'
            )
            if len(piece) == 1:
                yield _dot(piece[0], str(colour), 2.5)
    yield from _bars(trace, x, y)
    if "markers" in mode:
        look = str(marker.get("line", {}).get("color") or marker.get("color") or _BLUE)
        radius = marker.get("size", 8) / 2
        for point in itertools.chain.from_iterable(pieces):
            if str(marker.get("symbol", "")).startswith("x"):
                yield _cross(point, look, radius)
            elif marker.get("symbol") in {"circle-open", "circle"}:
                yield _dot(point, look, radius, hollow=True)
            else:
                yield _dot(point, str(marker.get("color", _BLUE)), radius)


def _pieces(xs: Sequence[Any], ys: Sequence[Any], x: _Axis, y: _Axis) -> list[list[Point]]:
    """Return the points in pixels, cut where a value is missing or not finite."""
    found: list[list[Point]] = [[]]
    for one, other in zip(xs, ys, strict=True):
        at, up = x.at(one), y.at(other)
        if at is None or up is None:
            found.append([])
        else:
            found[-1].append((at, up))
    return [piece for piece in found if piece]


def _path(points: Sequence[Point]) -> str:
    return "M" + "L".join(f"{x:.1f} {y:.1f}" for x, y in points)


def _dot(point: Point, colour: str, radius: float, *, hollow: bool = False) -> str:
    fill = "none" if hollow else escape(colour)
    edge = f' stroke="{escape(colour)}" stroke-width="2"' if hollow else ""
    return f'<circle cx="{point[0]:.1f}" cy="{point[1]:.1f}" r="{radius:g}" fill="{fill}"{edge}/>'


def _cross(point: Point, colour: str, radius: float) -> str:
    x, y = point
    return (
        f'<path stroke="{escape(colour)}" stroke-width="2" d="M{x - radius:.1f} {y - radius:.1f}'
        f"L{x + radius:.1f} {y + radius:.1f}M{x - radius:.1f} {y + radius:.1f}"
        f'L{x + radius:.1f} {y - radius:.1f}"/>'
    )


def _bars(trace: Mapping[str, Any], x: _Axis, y: _Axis) -> Iterable[str]:
    bars = trace.get("error_y")
    if bars is None:
        return
    columns = zip(trace["x"], trace["y"], bars["array"], bars["arrayminus"], strict=True)
    for at, value, above, under in columns:
        place, top, foot = x.at(at), y.at(value + above), y.at(value - under)
        if place is not None and top is not None and foot is not None:
            colour = escape(str(bars.get("color", _BLUE)))
            yield f'<path stroke="{colour}" d="M{place:.1f} {top:.1f}V{foot:.1f}"/>'


def _shape(shape: Mapping[str, Any], x: _Axis) -> Iterable[str]:
    """Draw a line or a rectangle over the whole height."""
    first, last = x.at(shape["x0"]), x.at(shape["x1"])
    if first is None or last is None:
        return
    first, last = max(min(first, last), _LEFT), min(max(first, last), WIDTH - _RIGHT)
    base = HEIGHT - _BOTTOM
    if shape["type"] == "rect":
        yield (
            f'<rect class="warn" x="{first:.1f}" y="{_TOP}" width="{max(last - first, 0):.1f}" '
            f'height="{base - _TOP}"/>'
        )
        return
    yield f'<line class="mark" x1="{first:.1f}" x2="{first:.1f}" y1="{_TOP}" y2="{base}"/>'
    label = shape.get("label", {}).get("text")
    if label:
        yield _text(first + 4, _TOP + 12, str(label), "start")


def _text(x: float, y: float, text: str, anchor: str, kind: str = "tick") -> str:
    return (
        f'<text class="{kind}" x="{x:.1f}" y="{y:.1f}" text-anchor="{anchor}">{escape(text)}</text>'
    )
