"""Curves as the API's schema: of a run, or the mean of several, with the digits that are drawn."""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from lehr.base.names import goal_of, is_speed
from lehr.schemas.streams import Series
from lehr.store.streams.series_query import SeriesData


def series_view(series: SeriesData, digits: int | None = None, **more: Any) -> Series:
    """Return the view; ``digits``: also of points that are as they were logged."""
    # Made of the store's own lists: nothing to validate, and a million points would take a second.
    made = vars(series) | {
        "goal": goal_of(series.name),
        "speed": is_speed(series.name),
        "superseded": [series_view(one, digits) for one in series.superseded],
        **more,
    }
    if digits or not series.exact:
        drawn = [key for key in ("y", "low", "high") if made[key]]
        made |= {key: rounded(made[key], digits or 7) for key in drawn}
    return Series.model_construct(**made)


def mean_view(
    curves: Sequence[SeriesData],
    ended: Sequence[bool],
    digits: int | None,
    far: Mapping[str, str],
    broken: Collection[str] = (),
) -> Series:
    """Return the mean of curves with points, as that of the first: of those that have a value, with
    one standard deviation below and above it. ``ended``: whether the run of each has ended.
    ``far``: names of the runs by id that are no members, as ``far_runs`` says; ``broken``: ids of
    those whose newest value is not finite. They are members only if all are broken.

    It has the steps of the finest curve, and those of others before and after it, where half of the
    members have a value: a mean of ever fewer would show who ends. A coarser curve counts with what
    is between its points.
    """
    members = [curve for curve in curves if curve.run_id not in broken] or curves
    finest = max(members, key=lambda curve: len(curve.step))
    first, last = finest.step[0], finest.step[-1]
    places = {
        step: x
        for curve in members
        if curve.step[0] < first or curve.step[-1] > last
        for step, x in zip(curve.step, curve.x, strict=True)
        if not first <= step <= last
    } | dict(zip(finest.step, finest.x, strict=True))
    steps = np.array(sorted(places))
    values = np.array([np.interp(steps, c.step, c.y, np.nan, np.nan) for c in members])
    finite = np.isfinite(values)
    counts = finite.sum(axis=0)
    there = 2 * counts >= len(members)
    steps, counts, values, finite = steps[there], counts[there], values[:, there], finite[:, there]
    mean = np.where(finite, values, 0.0).sum(axis=0) / counts
    squares = np.where(finite, (values - mean) ** 2, 0.0).sum(axis=0)
    deviation = np.sqrt(squares / np.maximum(counts - 1, 1))
    made = replace(
        members[0],
        exact=False,
        total_points=sum(one.total_points for one in members),
        step=steps.tolist(),
        x=[places[step] for step in steps.tolist()],
        y=mean.tolist(),
        low=(mean - deviation).tolist(),
        high=(mean + deviation).tolist(),
        nonfinite=[],
        superseded=[],
    )
    names = ", ".join([*far.values()][:3] + ["…"] * (len(far) > 3))
    left_out = f"{len(far):,} far run{'s' * (len(far) > 1)} left out: {names}" if far else ""
    return series_view(
        made,
        digits,
        members=len(members),
        counts=None if (counts == len(members)).all() else counts.tolist(),
        dropouts=", ".join(filter(None, [_dropouts(curves, ended), left_out])),
        far=[*far],
    )


def _dropouts(curves: Sequence[SeriesData], ended: Sequence[bool]) -> str:
    """Return which curves have no value at the last steps of the others, in words.

    ``ended``: whether the run of each has ended.
    """
    diverged: list[int] = []
    whole: list[tuple[int, bool]] = []
    for curve, over in zip(curves, ended, strict=True):
        finite = np.flatnonzero(np.isfinite(curve.y))
        last = int(finite[-1]) if len(finite) else -1
        if last + 1 < len(curve.step):
            diverged.append(curve.step[last + 1])
        else:
            whole.append((curve.step[last], over))
    longest = max((step for step, _ in whole), default=0)
    early = [step for step, over in whole if over and step < longest]
    return ", ".join(
        f"{len(steps)} {what} at {_places(steps)}"
        for steps, what in ((diverged, "diverged"), (early, "ended"))
        if steps
    )


def _places(steps: Sequence[int]) -> str:
    first, last = min(steps), max(steps)
    return f"step {first:,}" if first == last else f"steps {first:,} to {last:,}"


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
