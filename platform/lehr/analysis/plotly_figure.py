"""Figures as Plotly draws them, for notebooks.

Plotly takes ``<b>``, ``<a href=...>`` and ``&lt;`` in any text as markup, so names and values of
users are escaped.
"""

from __future__ import annotations

from collections.abc import Sequence
from html import escape
from typing import Any

from lehr.analysis.figure import STRIP, Axis, Band, Figure, FigurePoints

_SYMBOLS = {
    "dot": {"size": 9},
    "hollow": {"size": 9, "symbol": "circle-open", "line": {"width": 2}},
    "ring": {"size": 18, "symbol": "circle-open", "line": {"width": 2}},
    "cross": {"size": 9, "symbol": "x-thin", "line": {"width": 2}},
}


def plotly_figure(figures: Sequence[Figure], title: str = "") -> Any:
    """Return the figures as panels over one x axis, as a ``plotly.graph_objects.Figure``."""
    from plotly.subplots import make_subplots

    strip = any(points.role in STRIP for figure in figures for points in figure.points)
    heights = [0.15] * strip + [1.0] * len(figures)
    drawn = make_subplots(
        rows=len(heights), shared_xaxes=True, vertical_spacing=0.06, row_heights=heights
    )
    for row, figure in enumerate(figures, start=1 + strip):
        for band in figure.bands:
            _add_band(drawn, band, row)
        for points in figure.points:
            _add_points(drawn, figure, points, 1 if points.role in STRIP else row)
        for mark in figure.marks:
            if mark.until is None:
                line = {"line_dash": "dot", "line_width": 1, "annotation_text": mark.label}
                drawn.add_vline(mark.x, row=row, col=1, **line)
            else:
                look = {"fillcolor": "#bd1f01", "opacity": 0.07, "line_width": 0}
                drawn.add_vrect(mark.x, mark.until, row=row, col=1, **look)
        drawn.update_yaxes(title_text=_literal(figure.y.title), type=figure.y.kind, row=row)
        drawn.update_xaxes(_x_axis(figure.x), row=row)
    if strip:
        drawn.update_yaxes(type="category", categoryarray=list(STRIP[::-1]), row=1)
        drawn.update_xaxes(_x_axis(figures[0].x), row=1)
    drawn.update_xaxes(title_text=_literal(figures[-1].x.title), row=len(heights))
    return drawn.update_layout(
        title={"text": _literal(title), "font": {"size": 14}},
        template="plotly_white",
        hovermode="closest" if any(p.texts for f in figures for p in f.points) else "x unified",
        showlegend=any(figure.legend for figure in figures),
        height=max(400, 220 * len(figures)),
        margin={"l": 64, "r": 16, "t": 72 if title else 24, "b": 48},
    )


def _literal(value: Any) -> Any:
    return escape(value, quote=False).replace("\n", "<br>") if isinstance(value, str) else value


def _x_axis(axis: Axis) -> dict[str, Any]:
    ticks = {"tickvals": [v for v, _ in axis.ticks], "ticktext": [text for _, text in axis.ticks]}
    return {"type": axis.kind, **(ticks if axis.ticks else {})}


def _add_band(drawn: Any, band: Band, row: int) -> None:
    drawn.add_scatter(
        x=[_literal(x) for x in (*band.x, *reversed(band.x))],
        y=[*band.high, *reversed(band.low)],
        fill="toself",
        fillcolor="rgba(125,143,141,0.2)",
        line_width=0,
        hoverinfo="skip",
        showlegend=False,
        row=row,
        col=1,
    )


def _add_points(drawn: Any, figure: Figure, points: FigurePoints, row: int) -> None:
    look: dict[str, Any] = {"line": {"dash": points.dash, "width": points.width}, "mode": "lines"}
    if points.symbol is not None:
        look = {"marker": _SYMBOLS[points.symbol], "mode": "markers"}
    elif len(points.x) == 1:
        look = {"mode": "markers"}
    text = points.labels or points.texts
    if points.labels:
        look |= {"mode": "markers+text", "textposition": "top center", "hoverinfo": "skip"}
    elif points.texts:
        look["hovertemplate"] = "%{text}<extra></extra>"
    if points.ranges:
        pairs = list(zip(points.ranges, points.y, strict=True))
        above = [high - y for (_, high), y in pairs if y is not None]
        under = [y - low for (low, _), y in pairs if y is not None]
        look["error_y"] = {"symmetric": False, "array": above, "arrayminus": under}
    heights: Sequence[Any] = points.y or [points.role] * len(points.x)
    drawn.add_scatter(
        x=[_literal(x) for x in points.x],
        y=heights,
        name=_literal(points.name),
        text=[_literal(line) for line in text],
        showlegend=points in figure.legend,
        row=row,
        col=1,
        **look,
    )
    drawn.data[-1].update(_coloured(points))


def _coloured(points: FigurePoints) -> dict[str, Any]:
    if points.symbol is None and len(points.x) > 1:
        return {"line": {"color": points.colour}}
    return {"marker": {"color": points.colour, "line": {"color": points.colour}}}
