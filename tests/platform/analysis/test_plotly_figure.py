"""Figures in notebooks: the panels of Plotly, and names that it must not take as markup."""

from __future__ import annotations

import math
import re

from lehr.analysis.figure import curves_figure, plotly_figure, run_figures
from lehr.analysis.sweep_figure import sweep_figure
from lehr.schemas.streams import Series

from .test_sweep_figure import LR, parabola, sweep, trial

HOSTILE = "<a href='https://a.org/'>log in again</a> & <b>"


def series(name: str, y: list[float]) -> Series:
    return Series(
        run_id="a", name=name, exact=True, total_points=len(y), step=[1, 2], x=[1, 2], y=y
    )


def test_sweep_has_its_fit_its_best_and_a_panel_for_diverged_trials():
    trials = [*parabola([1e-4, 3e-4, 1e-3, 1e-2]), trial(9, math.nan, parameters={LR: 0.1})]
    figure = plotly_figure([sweep_figure(sweep(trials))], "a verdict")
    assert figure.layout.title.text == "a verdict"
    assert (figure.layout.xaxis2.type, figure.layout.yaxis.type) == ("log", "category")
    drawn = {trace.name: trace for trace in figure.data}
    assert list(drawn["best"].text) == ["best 1.0e-3"]
    assert list(drawn["diverged"].y) == ["diverged"]
    assert drawn["fit, 68 % of trials"].line.dash == "dash"


def test_metrics_of_a_run_share_panels_by_their_last_part():
    names = ("train/loss", "val/loss", "train/lr")
    figure = plotly_figure(run_figures([series(name, [3.0, math.nan]) for name in names]), "a run")
    assert [trace.yaxis for trace in figure.data] == ["y", "y", "y2"]
    assert figure.layout.yaxis2.title.text == "train/lr"
    assert list(figure.data[0].y) == [3.0, None]


def test_names_of_users_are_no_markup():
    trials = [
        trial(i, value, parameters={HOSTILE: place, f"other {HOSTILE}": HOSTILE})
        for i, (place, value) in enumerate([(HOSTILE, 3.0), (HOSTILE, 3.1), ("b", 3.2)])
    ]
    curves = curves_figure(HOSTILE, [(HOSTILE, series(f"x/{HOSTILE}", [2.0, 3.0]))])
    for figure in (sweep_figure(sweep(trials, metric=HOSTILE), HOSTILE), curves):
        text = plotly_figure([figure], HOSTILE).to_json()
        assert "log in again" in text
        assert set(re.findall("<[^>]*>", text)) <= {"<br>", "<extra></extra>", "<extra>"}
