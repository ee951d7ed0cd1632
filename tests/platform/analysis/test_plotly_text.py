"""Names and values of users in figures: shown as they are, never as Plotly's markup."""

from __future__ import annotations

import json
import re

from hypothesis import given
from hypothesis import strategies as st

from lehr.analysis.figures import curves_figure_data, run_figure, sweep_figure, sweep_figure_data
from lehr.analysis.plotly_text import literal, plain
from lehr.report import svg
from lehr.schemas.streams import Series

from .test_figures import sweep, trial

HOSTILE = "<a href='https://a.org/'>log in again</a> & <b>"
OWN = re.compile(r"<b>(?=grid-\d)|(?<=\d)</b>|<br>|<extra></extra>")


@given(st.text())
def test_text_is_shown_as_it_is(text):
    shown = literal(text)
    assert not {"<", ">"} & set(shown)
    assert plain(shown) == text


def assert_has_no_markup(figure):
    text = json.dumps(figure if isinstance(figure, dict) else json.loads(figure.to_json()))
    assert "log in again" in text
    assert "<" not in OWN.sub("", text)


def test_names_of_a_sweep_are_no_markup():
    trials = [
        trial(i, value, parameters={HOSTILE: place, f"other {HOSTILE}": HOSTILE})
        for i, (place, value) in enumerate(
            [(HOSTILE, 3.0), (HOSTILE, 3.1), ("b", 3.2), ("c", None)]
        )
    ]
    found = sweep(trials, metric=HOSTILE)
    figure = sweep_figure_data(found, HOSTILE)
    assert_has_no_markup(figure)
    assert_has_no_markup(sweep_figure(found, HOSTILE))
    drawn = svg.draw(figure, "grid")
    assert "&lt;a href=&#x27;https://a.org/" in drawn
    assert "&amp;lt;" not in drawn


def test_names_of_metrics_are_no_markup():
    series = Series(
        run_id="a", name=f"x/{HOSTILE}", exact=True, total_points=1, step=[1], x=[1], y=[2.0]
    )
    assert_has_no_markup(curves_figure_data(HOSTILE, [(HOSTILE, series)]))
    assert_has_no_markup(run_figure(HOSTILE, [series]))
