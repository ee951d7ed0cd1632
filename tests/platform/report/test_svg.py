"""Figures as SVG: positions, gaps, axes, escaping."""

from __future__ import annotations

import math
import re

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from lehr.report import svg
from lehr_testing.html import PageCheck


def figure(x, y, *, axis="linear", mode="lines+markers", **layout):
    trace = {"x": x, "y": y, "mode": mode, "name": "a", "line": {"color": "#112233"}}
    return {"data": [trace], "layout": {"xaxis": {"type": axis}, "yaxis": {}, **layout}}


def circles(drawn: str) -> list[tuple[float, float]]:
    found = re.findall(r'<circle cx="([\d.]+)" cy="([\d.]+)"', drawn)
    return [(float(x), float(y)) for x, y in found]


def test_points_are_where_their_values_are():
    [(x0, y0), (x1, y1), (x2, y2)] = circles(svg.draw(figure([0, 1, 3], [5.0, 5.0, 9.0]), "t"))
    assert (x1 - x0) * 2 == pytest.approx(x2 - x1, abs=0.2)
    assert y0 == y1 > y2
    assert 0 < x0 < x2 < svg.WIDTH
    assert 0 < y2 < y0 < svg.HEIGHT


def test_a_logarithmic_axis_spaces_decades_equally():
    [(x0, _), (x1, _), (x2, _)] = circles(
        svg.draw(figure([1e-4, 1e-3, 1e-2], [1.0, 2.0, 3.0], axis="log"), "t")
    )
    assert x1 - x0 == pytest.approx(x2 - x1, abs=0.2)


@pytest.mark.parametrize("gap", [None, math.nan, math.inf])
def test_a_missing_value_cuts_the_line(gap):
    drawn = svg.draw(figure([0, 1, 2, 3, 4], [1.0, 2.0, gap, 2.0, 1.0], mode="lines"), "t")
    assert drawn.count('fill="none" stroke="#112233"') == 2
    assert "nan" not in drawn
    assert "inf" not in drawn


def test_a_figure_without_values_says_so():
    for data in (figure([], []), figure([1], [math.nan]), figure([0], [1.0], axis="log")):
        assert "no values" in svg.draw(data, "t")


def test_text_of_users_is_escaped():
    hostile = "<script>alert(1)</script>\"'"
    data = figure(["a", hostile], [1.0, 2.0], axis="category")
    data["data"][0]["marker"] = {"color": hostile}
    data["layout"]["yaxis"] = {"title": {"text": hostile}}
    drawn = svg.draw(data, hostile)
    assert PageCheck(drawn).faults == []
    assert "script" not in PageCheck(drawn).tags


def test_the_legend_names_each_trace_once_with_its_colour():
    data = figure([0, 1], [1.0, 2.0])
    other = {"x": [0], "y": [1], "name": "b", "line": {"color": "#445566", "dash": "dash"}}
    data["data"] += [other, other]
    assert svg.legend(data) == [
        svg.Entry("a", "#112233", ""),
        svg.Entry("b", "#445566", "6 4"),
    ]
    assert svg.legend(figure([0, 1], [1.0, 2.0])) == []


@given(
    st.lists(st.tuples(st.floats(), st.floats() | st.none()), max_size=8),
    st.sampled_from(["linear", "log", "category"]),
)
@example([(0.0, 1.7e308), (1.0, -1.7e308)], "linear")
@example([(0.0, 5e-324), (1.0, 0.0)], "linear")
@example([(1.7e308, 1.7e308), (1e-300, 5e-324)], "log")
@example([(1.7e308, 1.7e308), (1.6e308, 1.0)], "log")
@example([(0.0, 1.0), (1.0, 1.0 + 1e-15)], "linear")
@example([(5.684804840213573e307, 0.0)], "log")
def test_any_values_give_a_balanced_figure_inside_its_frame(points, axis):
    data = figure([x for x, _ in points], [y for _, y in points], axis=axis)
    drawn = svg.draw(data, "t")
    assert PageCheck(drawn).faults == []
    for x, y in circles(drawn):
        assert 0 <= x <= svg.WIDTH
        assert 0 <= y <= svg.HEIGHT


@given(st.floats(-1e9, 1e9), st.floats(1e-6, 1e9))
def test_ticks_are_few_round_and_inside(low, span):
    high = low + span
    if not high > low or span < abs(low) * 1e-9:
        return
    found = svg.ticks("linear", low, high)
    assert len(found) <= 12
    assert all(low - span * 1e-6 <= tick <= high + span * 1e-6 for tick in found)
