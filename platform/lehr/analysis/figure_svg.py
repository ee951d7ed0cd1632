"""Figures as SVG, for pages, reports and notebooks.

Text of users is escaped. There is no script and no style attribute: each kind of points has its
colour as ``currentColor``, so that a style sheet can replace it, as the dark theme does.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from html import escape
from typing import Any

from lehr.analysis.figure import STRIP, Axis, Band, Figure, FigurePoints, Mark
from lehr.analysis.figure_labels import Point, around, arranged, ticks
from lehr.base.formats import scientific

WIDTH, HEIGHT = 640, 280
_RIGHT, _TOP, _BOTTOM = 14, 14, 48
_ROW, _LETTER = 18, 6.4
"""Pixels of a line of text and of a letter, on average."""
_INDENT, _LONGEST = 40.0, 48
"""Pixels before the legend, and letters of a name in it."""
_APART_X, _APART_Y = 80, 36
"""Pixels between two round values of an axis, about."""
_DASHES = {"dash": "6 4", "dashdot": "8 3 2 3", "dot": "2 3"}
_SAME = 1e-9  # Share of the values below which their range cannot be drawn.
_TINY, _HUGE = 1e-290, 1e290
"""Bounds of values whose ticks can be computed."""


@dataclass(frozen=True)
class _Scale:
    """Maps the values of an axis to pixels."""

    axis: Axis
    low: float
    high: float
    first: float
    last: float
    categories: tuple[str, ...] = ()

    def pixel(self, value: Any) -> float | None:
        """Return the pixel of a value; None if the axis cannot show it."""
        number = _number(value, self.axis, self.categories)
        if number is None:
            return None
        return self.first + (number - self.low) / (self.high - self.low) * (self.last - self.first)

    def labels(self) -> list[tuple[float | str, str]]:
        if self.axis.kind == "category":
            return [(name, _cut(name, 24)) for name in self.categories]
        if self.axis.ticks:
            return list(self.axis.ticks)
        apart = _APART_X if self.last > self.first else _APART_Y
        most = max(2, round(abs(self.last - self.first) / apart))
        rounded = ticks(self.axis.kind, self.low, self.high, most)
        plain = [f"{value:.6g}" for value in rounded]
        if (self.axis.kind == "log" and self.high - self.low >= 1) or "e" in "".join(plain):
            return [(value, scientific(value)) for value in rounded]
        places = max((len(one.partition(".")[2]) for one in plain), default=0)
        return [(value, f"{value:.{places}f}") for value in rounded]


@dataclass(frozen=True)
class _Frame:
    """The part of a drawing that has the points. Its strip, if any, is above it."""

    left: float
    top: float
    right: float
    base: float
    strip: float
    rows: tuple[str, ...]
    """Those of the strip that have points."""


def draw(
    figure: Figure, title: str, *, width: int = WIDTH, height: int = HEIGHT, links: bool = False
) -> str:
    """Return the figure as an ``svg`` element, which ``title`` describes to screen readers.

    Sizes are in pixels. With ``links`` each point names its run, as ``data-run``. Points that
    wait for their values are on its x axis. A figure without values, none of which can come any
    more, has half of the height.
    """
    names, lines = _legend(figure, width)
    ended = {points.role for points in figure.points if points.x}
    strip = tuple(role for role in STRIP if role in ended)
    top = _TOP + _ROW * lines
    values_top = top + (_ROW * len(strip) + 8 if strip else 0)
    y = _scale(figure.y, _y_values(figure), height - _BOTTOM, values_top)
    waits = any(points.role == "pending" for points in figure.points)
    if y is None and not waits:
        height //= 2
    widest = max((len(text) for _, text in y.labels()) if y else (), default=0)
    left = 30 + _LETTER * max(widest, 8 if strip else 4)
    frame = _Frame(left, values_top, width - _RIGHT, height - _BOTTOM, top, strip)
    x = _scale(figure.x, _x_values(figure), frame.left, frame.right)
    role = "group" if links else "img"  # What is within an image cannot be reached by keys.
    parts = [
        f'<svg class="figure" role="{role}" viewBox="0 0 {width} {height}">',
        f"<title>{escape(title)}</title>",
    ]
    if x is None or (y is None and not strip and not waits):
        return "".join([*parts, _text(width / 2, height / 2, "no values", "middle"), "</svg>"])
    parts += [*_grid(x, y, frame), *names]
    parts += [_mark(mark, x, frame) for mark in figure.marks]
    if y is not None:
        parts += [_band(band, x, y) for band in figure.bands]
    for points in figure.points:
        parts += _points(points, x, y, frame, links)
    parts += _labels(figure, x, y, frame)
    return "".join([*parts, "</svg>"])


# --- axes ----------------------------------------------------------------------------------


def _x_values(figure: Figure) -> list[Any]:
    values = [x for points in figure.points for x in points.x]
    values += [x for band in figure.bands for x in band.x]
    return values + [value for value, _ in figure.x.ticks] if values else []


def _y_values(figure: Figure) -> list[Any]:
    values = [y for points in figure.points for y in points.y]
    values += [y for points in figure.points for pair in points.ranges for y in pair]
    return values + [y for band in figure.bands for y in (*band.low, *band.high)]


def _number(value: Any, axis: Axis, categories: Sequence[str] = ()) -> float | None:
    if axis.kind == "category":
        return float(categories.index(str(value))) if str(value) in categories else None
    if value is None or isinstance(value, bool | str) or not math.isfinite(value):
        return None
    if axis.kind == "log":
        return math.log10(value) if value > 0 else None
    return float(value) if abs(value) < _HUGE else None


def _scale(axis: Axis, values: Sequence[Any], first: float, last: float) -> _Scale | None:
    categories: tuple[str, ...] = ()
    if axis.kind == "category":
        categories = tuple(dict.fromkeys(str(value) for value in values))
    numbers = [n for value in values if (n := _number(value, axis, categories)) is not None]
    if not numbers:
        return None
    low, high = min(numbers), max(numbers)
    size = max(abs(low), abs(high))
    margin = (high - low) * 0.05
    if margin <= size * _SAME:  # All are the same, as far as can be seen.
        margin = 0.5 if axis.kind != "linear" or size < _TINY else size * 0.05
    return _Scale(axis, low - margin, high + margin, first, last, categories)


def _grid(x: _Scale, y: _Scale | None, frame: _Frame) -> Iterator[str]:
    for value, label in y.labels() if y is not None else ():
        place = y.pixel(value) if y is not None else None
        if place is not None and frame.top <= place <= frame.base:
            yield (
                f'<line class="grid" x1="{frame.left:.1f}" x2="{frame.right}" '
                f'y1="{place:.1f}" y2="{place:.1f}"/>'
            )
            yield _text(frame.left - 6, place + 4, label, "end")
    for row, name in enumerate(frame.rows):
        yield _text(frame.left - 6, frame.strip + _ROW * (row + 0.5) + 4, name, "end")
    taken = -math.inf
    for value, label in x.labels():
        place = x.pixel(value)
        half = _LETTER / 2 * len(label)
        if place is None or not frame.left <= place <= frame.right or place - half < taken:
            continue  # Labels must not overlap.
        taken = place + half + 6
        yield f'<path class="grid" d="M{place:.1f} {frame.strip}V{frame.base}"/>'
        middle = min(max(place, half), frame.right + _RIGHT - half)
        yield _text(middle, frame.base + 16, label, "middle")
    yield (
        f'<path class="axis" d="M{frame.left:.1f} {frame.top}V{frame.base}H{frame.right}"/>'
        f'<text class="name" text-anchor="middle" '
        f'transform="translate(13 {(frame.top + frame.base) / 2}) rotate(-90)">'
        f"{escape(y.axis.title if y is not None else '')}</text>"
    )
    middle = (frame.left + frame.right) / 2
    yield _text(middle, frame.base + 38, x.axis.title, "middle", "name")


# --- what is on them -----------------------------------------------------------------------


def _legend(figure: Figure, width: float) -> tuple[list[str], int]:
    """Return the entries of the legend, and how many lines they take."""
    entries: list[str] = []
    place, line = _INDENT, 0
    for points in figure.legend:
        name = _cut(points.name, _LONGEST)
        room = 44 + _LETTER * len(name)
        if place + room > width and place > _INDENT:
            place, line = _INDENT, line + 1
        middle = 10 + _ROW * line
        sample = (place + 11, float(middle))
        if points.symbol is None:
            symbol = _line(points, [(place, middle), (place + 22, middle)])
        else:
            symbol = _symbol(points, sample)
        entries.append(_group(points, [symbol]) + _text(place + 28, middle + 4, name, "start"))
        place += room
    return entries, line + 1 if entries else 0


def _mark(mark: Mark, x: _Scale, frame: _Frame) -> str:
    place = x.pixel(mark.x)
    until = x.pixel(mark.until if mark.until is not None else mark.x)
    if place is None or until is None or until < frame.left or place > frame.right:
        return ""
    if mark.until is not None:
        place, until = max(place, frame.left), min(until, frame.right)
        return (
            f'<rect class="warn" x="{place:.1f}" y="{frame.strip}" width="{until - place:.1f}" '
            f'height="{frame.base - frame.strip}"/>'
        )
    return f'<path class="mark" d="M{place:.1f} {frame.strip}V{frame.base}"/>'


def _band(band: Band, x: _Scale, y: _Scale) -> str:
    upper: list[Point] = []
    lower: list[Point] = []
    for value, low, high in zip(band.x, band.low, band.high, strict=True):
        across, top, foot = x.pixel(value), y.pixel(high), y.pixel(low)
        if across is not None and top is not None:
            upper.append((across, top))
            # Of a logarithmic axis, zero is infinitely far below.
            lower.append((across, y.first if foot is None else foot))
    return f'<path class="band" d="{_path([*upper, *reversed(lower)])}Z"/>' if upper else ""


def _points(
    points: FigurePoints, x: _Scale, y: _Scale | None, frame: _Frame, links: bool
) -> Iterator[str]:
    """Yield one element, with a gap where a value is missing or not finite."""
    if points.symbol is None:
        if y is not None:
            pieces = _pieces(points.x, points.y, x, y)
            lines = [_line(points, piece) for piece in pieces]
            yield _group(points, [*lines, *_bars(points, x, y)])
        return
    drawn = []
    for i, place in _places(points, x, y, frame).items():
        symbol = _symbol(points, place, i)
        if links and points.runs and points.symbol != "ring":
            symbol = f'<g data-run="{escape(points.runs[i])}">{symbol}</g>'
        drawn.append(symbol)
    yield _group(points, drawn)


def _places(points: FigurePoints, x: _Scale, y: _Scale | None, frame: _Frame) -> dict[int, Point]:
    """Return where the points are, by their index; those that wait for a value on the x axis."""
    places: dict[int, Point] = {}
    for i, value in enumerate(points.x):
        across = x.pixel(value)
        if points.role in frame.rows:
            down: float | None = frame.strip + _ROW * (frame.rows.index(points.role) + 0.5)
        else:
            down = y.pixel(points.y[i]) if y is not None else None
        if down is None and points.role == "pending":
            down = frame.base
        if across is not None and down is not None:
            places[i] = across, down
    return places


def _labels(figure: Figure, x: _Scale, y: _Scale | None, frame: _Frame) -> Iterator[str]:
    """Yield the labels, of points first."""
    dots: list[Point] = []
    texts: list[tuple[str, str]] = []
    wanted: list[tuple[float, list[Point]]] = []
    for points in figure.points:
        places = _places(points, x, y, frame) if points.symbol is not None else {}
        dots += places.values()
        for i, place in places.items() if points.labels else ():
            half = _LETTER / 2 * len(points.labels[i])
            texts.append((points.labels[i], "label"))
            wanted.append((half, around(place, half)))
    rules = []
    for mark in figure.marks:
        across = x.pixel(mark.x) if mark.until is None else None
        if across is not None:
            half = _LETTER / 2 * len(mark.label)
            rows = range(int(frame.base) - 6, int(frame.top), -_ROW)
            sides = (across + half + 4, across - half - 4)
            texts.append((mark.label, "tick"))
            wanted.append((half, [(middle, row) for row in rows for middle in sides]))
            rules.append(across)
    room = (frame.left + 4, frame.top, frame.right, frame.base - 1)
    found = arranged(wanted, dots, rules, room)
    for (text, kind), (middle, foot) in zip(texts, found, strict=True):
        yield _text(middle, foot, text, "middle", kind)


def _group(points: FigurePoints, parts: Iterable[str]) -> str:
    slot = f' data-slot="{points.slot}"' if points.slot is not None else ""
    return f'<g class="{points.role}" color="{points.colour}"{slot}>{"".join(parts)}</g>'


def _line(points: FigurePoints, piece: Sequence[Point]) -> str:
    if len(piece) == 1:
        return _circle(piece[0], 2.5, hollow=False)
    dashes = _DASHES.get(points.dash)
    dash = f' stroke-dasharray="{dashes}"' if dashes else ""
    return (
        f'<path fill="none" stroke="currentColor" stroke-width="{points.width}"{dash} '
        f'd="{_path(piece)}"/>'
    )


def _symbol(points: FigurePoints, place: Point, index: int = -1) -> str:
    """Return the symbol of a point; that of the legend has no index, and so no text."""
    text = points.texts[index] if index >= 0 and points.texts else ""
    if points.symbol == "cross":
        across, down = place
        strokes = f"M{across - 4.5:.1f} {down - 4.5:.1f}l9 9m0 -9l-9 9"
        return (
            '<path fill="none" stroke="currentColor" stroke-width="2" pointer-events="all" '
            f'd="{strokes}"{_end("path", text)}'
        )
    if points.symbol == "ring":  # The point within it shows its text.
        return f'<g pointer-events="none">{_circle(place, 9)}</g>'
    return _circle(place, 4.5, hollow=points.symbol == "hollow", text=text)


def _circle(place: Point, radius: float, *, hollow: bool = True, text: str = "") -> str:
    look = 'fill="currentColor"'
    if hollow:
        look = 'fill="none" stroke="currentColor" stroke-width="2" pointer-events="all"'
    end = _end("circle", text)
    return f'<circle cx="{place[0]:.1f}" cy="{place[1]:.1f}" r="{radius:g}" {look}{end}'


def _end(tag: str, text: str) -> str:
    """Return the end of an element; the browser shows its text at the pointer."""
    return f"><title>{escape(text)}</title></{tag}>" if text else "/>"


def _bars(points: FigurePoints, x: _Scale, y: _Scale) -> Iterator[str]:
    for value, (low, high) in zip(points.x, points.ranges, strict=False):
        place, top, foot = x.pixel(value), y.pixel(high), y.pixel(low)
        if place is not None and top is not None and foot is not None:
            ends = f"M{place:.1f} {top:.1f}V{foot:.1f}m-4 0h8M{place - 4:.1f} {top:.1f}h8"
            yield f'<path fill="none" stroke="currentColor" stroke-width="1.25" d="{ends}"/>'


def _pieces(xs: Sequence[Any], ys: Sequence[Any], x: _Scale, y: _Scale) -> list[list[Point]]:
    """Return the points in pixels, cut where a value is missing or not finite."""
    pieces: list[list[Point]] = [[]]
    for across, down in ((x.pixel(a), y.pixel(b)) for a, b in zip(xs, ys, strict=True)):
        if across is None or down is None:
            pieces.append([])
        else:
            pieces[-1].append((across, down))
    return [piece for piece in pieces if piece]


def _path(points: Sequence[Point]) -> str:
    return "M" + "L".join(f"{x:.1f} {y:.1f}" for x, y in points)


def _cut(text: str, most: int) -> str:
    return text if len(text) <= most else f"{text[: most - 3]}..."


def _text(x: float, y: float, text: str, anchor: str, kind: str = "tick") -> str:
    return (
        f'<text class="{kind}" x="{x:.1f}" y="{y:.1f}" text-anchor="{anchor}">{escape(text)}</text>'
    )
