"""Curves as the API's schema: of a run, or the mean of several, with the digits that are drawn."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from lehr.analysis.mean_curves import dropouts, mean_curve
from lehr.base.names import goal_of
from lehr.schemas.streams import Series
from lehr.store.streams.series_query import SeriesData


def series_view(series: SeriesData, digits: int | None = None, **more: Any) -> Series:
    """Return the view; ``digits``: also of points that are as they were logged."""
    # Made of the store's own lists: nothing to validate, and a million points would take a second.
    made = vars(series) | {
        "goal": goal_of(series.name),
        "superseded": [series_view(one, digits) for one in series.superseded],
        **more,
    }
    if digits or not series.exact:
        drawn = [key for key in ("y", "low", "high") if made[key]]
        made |= {key: rounded(made[key], digits or 7) for key in drawn}
    return Series.model_construct(**made)


def mean_view(members: Sequence[SeriesData], ended: Sequence[bool], digits: int | None) -> Series:
    """Return the mean of several runs' curves of a metric, as that of the first."""
    mean = vars(mean_curve(members))
    if min(mean["counts"], default=0) == len(members):
        mean["counts"] = None
    return series_view(
        replace(members[0], exact=False, superseded=[]),
        digits,
        **mean,
        members=len(members),
        dropouts=dropouts(members, ended),
        nonfinite=[],
        total_points=sum(one.total_points for one in members),
    )


def rounded(values: Sequence[float], digits: int = 7) -> list[float]:
    """Round to significant digits, by default as many as a float32 has: the JSON of a picture is
    half as long.
    """
    exact = np.asarray(values, np.float64)
    with np.errstate(all="ignore"):
        power = digits - 1 - np.floor(np.log10(np.abs(exact)))
        scale = 10.0 ** np.abs(power)
        short = np.where(
            power < 0, np.round(exact / scale) * scale, np.round(exact * scale) / scale
        )
    result: list[float] = np.where(np.isfinite(short), short, exact).tolist()
    return result


def drawn(values: Sequence[float]) -> list[float]:
    """Round to a fiftieth of their range or finer: a sparkline is 20 pixels high."""
    finite = [value for value in values if math.isfinite(value)]
    span = max(finite, default=0.0) - min(finite, default=0.0)
    if not span or not math.isfinite(span):
        return rounded(values)
    found: list[float] = np.round(values, math.ceil(math.log10(50 / span))).tolist()
    return found
