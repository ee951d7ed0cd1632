"""Figures as SVG: positions, gaps, axes, escaping."""

from __future__ import annotations

import math
import re
from functools import partial
from html import escape

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from lehr.analysis import figure_svg as svg
from lehr.analysis.figure import (
    Axis,
    Band,
    Figure,
    FigurePoints,
    Mark,
    run_figures,
    stroke,
)
from lehr.analysis.sweep_figure import sweep_figure
from lehr.schemas.runs import TrainStage
from lehr.schemas.streams import Series
from lehr_testing.html import PageCheck

from .test_sweep_figure import LR, parabola, sweep, trial


def figure(x, y, *, axis="linear", symbol=None, **changes) -> Figure:
    points = [FigurePoints("a", "run", x, y, symbol=symbol, slot=0), *changes.pop("more", [])]
    return Figure(Axis("x", axis), Axis("y"), points, **changes)


def circles(drawn: str) -> list[tuple[float, float]]:
    found = re.findall(r'<circle cx="([\d.]+)" cy="([\d.]+)"', drawn)
    return [(float(x), float(y)) for x, y in found]


def test_points_are_where_their_values_are():
    [(x0, y0), (x1, y1), (x2, y2)] = circles(
        svg.draw(figure([0, 1, 3], [5.0, 5.0, 9.0], symbol="dot"), "t")
    )
    assert (x1 - x0) * 2 == pytest.approx(x2 - x1, abs=0.2)
    assert y0 == y1 > y2
    assert 0 < x0 < x2 < svg.WIDTH
    assert 0 < y2 < y0 < svg.HEIGHT


def test_a_logarithmic_axis_spaces_decades_equally():
    [(x0, _), (x1, _), (x2, _)] = circles(
        svg.draw(figure([1e-4, 1e-3, 1e-2], [1.0, 2.0, 3.0], axis="log", symbol="dot"), "t")
    )
    assert x1 - x0 == pytest.approx(x2 - x1, abs=0.2)


@pytest.mark.parametrize("gap", [None, math.nan, math.inf])
def test_a_missing_value_cuts_the_line(gap):
    drawn = svg.draw(figure([0, 1, 2, 3, 4], [1.0, 2.0, gap, 2.0, 1.0]), "t")
    assert drawn.count('<path fill="none" stroke="currentColor"') == 2
    assert "nan" not in drawn
    assert "inf" not in drawn


def test_a_figure_without_values_says_so():
    for data in (figure([], []), figure([1], [math.nan]), figure([0], [1.0], axis="log")):
        assert "no values" in svg.draw(data, "t")


def test_text_of_users_is_escaped():
    hostile = "<script>alert(1)</script>\"'"
    users = FigurePoints(
        hostile, "points", ["a", hostile], [1.0, 2.0], symbol="dot",
        texts=[hostile] * 2, labels=[hostile] * 2, runs=[hostile] * 2,
    )  # fmt: skip
    marks = [Mark(0, hostile)]
    data = figure(["a", hostile], [1.0, 2.0], axis="category", more=[users], marks=marks)
    drawn = svg.draw(data, hostile)
    assert PageCheck(drawn).faults == []
    assert not {"script", "a"} & set(PageCheck(drawn).tags)
    assert f'data-run="{escape(hostile)}"' in svg.draw(data, hostile, links=True)


def test_the_legend_names_each_kind_once_with_its_colour_and_wraps():
    more = [
        FigurePoints(name, "run", [0], [1], slot=1, dash="dash") for name in ("b", "b", "c" * 90)
    ]
    drawn = svg.draw(figure([0, 1], [1.0, 2.0], more=more), "t", width=320)
    texts = re.findall(r'<text class="tick" x="[\d.]+" y="([\d.]+)"[^>]*>([abc.]+)</text>', drawn)
    assert [(text, y) for y, text in texts] == [
        ("a", "14.0"),
        ("b", "14.0"),
        ("c" * 45 + "...", "32.0"),
    ]
    assert 'stroke-dasharray="6 4" d="M' in drawn
    assert f'class="run" color="{stroke(1).colour}" data-slot="1"' in drawn
    assert '<text class="tick"' in svg.draw(figure([0, 1], [1.0, 2.0]), "t")


def test_trials_without_a_value_are_in_a_strip_above_the_others():
    ended = FigurePoints("diverged", "diverged", [2], [], symbol="cross", texts=["b"], runs=["k3"])
    drawn = svg.draw(figure([0, 1], [1.0, 2.0], symbol="dot", more=[ended]), "t", links=True)
    strip = float(re.search(r'y="([\d.]+)" text-anchor="end">diverged', drawn)[1])
    assert "stopped" not in drawn
    cross = float(re.search(r'<g data-run="k3"><path [^>]*d="M[\d.]+ ([\d.]+)l', drawn)[1])
    assert cross <= strip < min(y for _, y in circles(drawn)[1:3])
    assert "no values" not in svg.draw(Figure(Axis("x"), Axis("y"), [ended]), "t")


def test_band_reaches_the_foot_of_a_logarithmic_axis_where_it_is_not_positive():
    band = Band([1, 2], [-1.0, 0.5], [2.0, 2.0])
    data = Figure(
        Axis("x"), Axis("y", "log"), [FigurePoints("a", "fit", [1, 2], [1.0, 1.0])], [band]
    )
    [corners] = re.findall(r'class="band" d="M([^Z]*)Z"', svg.draw(data, "t"))
    heights = [float(corner.split()[1]) for corner in corners.split("L")]
    assert heights[3] == svg.HEIGHT - 48
    assert heights[2] < heights[3]


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
    data = figure([x for x, _ in points], [y for _, y in points], axis=axis, symbol="dot")
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
    found = svg.ticks("linear", low, high, 6)
    assert len(found) <= 12
    assert all(low - span * 1e-6 <= tick <= high + span * 1e-6 for tick in found)


def test_labels_cover_no_other_label_and_no_axis():
    best = FigurePoints("best", "best", [1.02], [1.0], symbol="ring", labels=["best 2.675e-3"])
    marks = [Mark(x, f"probably {x}") for x in (1.0, 1.01, 1.03)]
    drawn = svg.draw(figure([0, 1.02, 2], [3, 1, 3], symbol="dot", more=[best], marks=marks), "t")
    texts = re.findall(
        r'x="([\d.]+)" y="([\d.]+)" text-anchor="middle">((?:best|prob)[^<]+)', drawn
    )
    boxes = [(float(x), float(y), 3.2 * len(text)) for x, y, text in texts]
    assert len(boxes) == 4
    for i, (x, y, half) in enumerate(boxes):
        assert y - 11 > svg._TOP
        assert y + 4 <= svg.HEIGHT - 48
        assert 30 < x - half < x + half < svg.WIDTH
        for other, foot, wide in boxes[:i]:
            assert abs(x - other) >= half + wide or abs(y - foot) >= 15


def test_points_that_wait_are_on_the_axis_and_what_never_ran_is_low():
    waits = FigurePoints("not compared yet", "pending", [1, 2], [None, None], symbol="hollow")
    drawn = svg.draw(Figure(Axis("x"), Axis("y"), [waits]), "t", height=300)
    assert 'viewBox="0 0 640 300"' in drawn  # The place that its values will need.
    assert [y for _, y in circles(drawn)[-2:]] == [300 - 48, 300 - 48]
    never = FigurePoints("cancelled", "stopped", [1, 2], [None, None], symbol="cross")
    drawn = svg.draw(Figure(Axis("x"), Axis("y"), [never]), "t", height=300)
    assert 'viewBox="0 0 640 150"' in drawn


def series(name: str, y: list[float]) -> Series:
    return Series(
        run_id="a", name=name, exact=True, total_points=len(y), step=[1, 2], x=[1, 2], y=y
    )


def test_sweep_has_its_fit_its_best_and_a_strip_for_diverged_trials():
    trials = [*parabola([1e-4, 3e-4, 1e-3, 1e-2]), trial(9, math.nan, parameters={LR: 0.1})]
    drawn = svg.draw(sweep_figure(sweep(trials)), "t")
    assert ">best 1.0e-3</text>" in drawn
    assert '<g class="diverged"' in drawn
    assert re.search(r'<g class="fit"[^>]*><path [^>]*stroke-dasharray="6 4"', drawn)


def test_stage_is_marked_where_it_begins_on_each_axis():
    stage = partial(TrainStage, last_step=9, sequences=1, sequence_length=8)
    stages = [stage(name="a", first_step=1, tokens=0), stage(name="b", first_step=2, tokens=96)]
    for axis, marks in (("step", [(2, "b")]), ("tokens", [(96, "b")]), ("time", [])):
        [figure] = run_figures(
            [series("x", [2.0, 3.0]).model_copy(update={"x_axis": axis})], stages
        )
        assert [(mark.x, mark.label) for mark in figure.marks] == marks
