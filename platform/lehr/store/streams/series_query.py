"""Prepare a series for a chart: put it on its axis, smooth, cut and reduce it to buckets."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Literal

import numpy as np

from lehr.errors import UserError
from lehr.store.streams import index, points
from lehr.store.streams.points import EMPTY, AttemptStart, Floats, Ints, Key, Points

MAX_BUCKETS = 20_000
_MAX_NONFINITE = 1000


SeriesAxis = Literal["step", "tokens", "time"]
AXES = {"tokens": index.TOKENS, "time": index.TIME}


@dataclass(frozen=True)
class SeriesData:
    """One metric of one run, reduced to buckets unless ``exact``.

    The unit of ``x`` is ``x_axis``: step, tokens, or seconds since the run's first point. In a
    reduced series ``x``/``y`` hold each bucket's last point and ``low``/``high`` its range.
    """

    run_id: str
    name: str
    x_axis: SeriesAxis | Literal["flops"]
    exact: bool
    total_points: int
    step: list[int]
    x: list[float]
    y: list[float]
    low: list[float] | None
    high: list[float] | None
    nonfinite: list[int]
    """Steps whose value is NaN or infinite (the first 1,000), also within buckets."""
    superseded: list[SeriesData] = field(default_factory=list)
    """Points of earlier attempts after the step from which a later one resumed, if requested."""


@dataclass(frozen=True)
class _Curve:
    """The points of a chart: ``x`` ascends."""

    steps: Ints
    x: Floats
    y: Floats


@dataclass(frozen=True)
class Wanted:
    """What to read of a series: smooth all of it, cut it to a range, reduce it to buckets."""

    x_axis: SeriesAxis = "step"
    points: int = 500
    """The most buckets. They have equal widths; those without a point are left out."""
    exact: bool = False
    """Every point instead."""
    first: float | None = None
    last: float | None = None
    """Bounds of the range, both included, in the unit of the x axis."""
    smoothing: float | None = None
    """The weight of the average, from 0 (none) to below 1."""
    with_superseded: bool = False


def check(wanted: Wanted) -> None:
    if wanted.x_axis not in {"step", "tokens", "time"}:
        raise UserError(f"x is {wanted.x_axis!r}; it must be step, tokens or time.")
    if not 1 <= wanted.points <= MAX_BUCKETS:
        raise UserError(f"points is {wanted.points}; it must be from 1 to {MAX_BUCKETS:,}.")
    if not 0.0 <= (wanted.smoothing or 0.0) < 1.0:
        raise UserError(f"smoothing is {wanted.smoothing}; it must be from 0 to below 1.")
    for name, bound in (("first", wanted.first), ("last", wanted.last)):
        if bound is not None and math.isnan(bound):
            raise UserError(f"{name} is not a number.")


def series(
    loaded: Mapping[Key, Points],
    known: Sequence[AttemptStart],
    run_id: str,
    run: int,
    name: str,
    metric: int,
    wanted: Wanted,
) -> SeriesData:
    spans = points.lineage(known)
    zero = first_time(loaded, run, known) if wanted.x_axis == "time" else 0.0
    pieces = points.curve(loaded, run, metric, spans)
    main = _draw(run_id, name, _on_axis(loaded, run, pieces, wanted.x_axis, zero), wanted)
    if wanted.with_superseded:
        superseded = [
            _draw(run_id, name, _on_axis(loaded, run, [piece], wanted.x_axis, zero), wanted)
            for piece in points.superseded(loaded, run, metric, known, spans)
        ]
        main = replace(main, superseded=superseded)
    return main


def steps_within(wanted: Wanted) -> tuple[int, int] | None:
    """Return the steps that the range needs; None if it needs all.

    An average needs earlier points, and the steps of a range in tokens or time are known only
    once they are read.
    """
    if wanted.x_axis != "step" or wanted.smoothing or wanted.first is wanted.last is None:
        return None
    low = -points.NO_LIMIT if wanted.first is None else _whole(math.ceil, wanted.first)
    high = points.NO_LIMIT if wanted.last is None else _whole(math.floor, wanted.last)
    return low, high


def _whole(rounded: Callable[[float], int], value: float) -> int:
    if math.isinf(value):
        return points.NO_LIMIT if value > 0 else -points.NO_LIMIT
    return max(-points.NO_LIMIT, min(points.NO_LIMIT, rounded(value)))


def _on_axis(
    loaded: Mapping[Key, Points],
    run: int,
    pieces: Sequence[tuple[int, Points]],
    x_axis: SeriesAxis,
    zero: float,
) -> _Curve:
    """Join the pieces into one curve over the axis; points without a logged x are left out."""
    joined = points.joined(pieces)
    if x_axis == "step":
        return _Curve(joined.steps, joined.steps.astype(np.float64), joined.values)
    parts = [
        _lookup(loaded.get((run, AXES[x_axis], attempt), EMPTY), piece.steps)
        for attempt, piece in pieces
    ]
    x = np.concatenate([*parts, np.empty(0)]) - zero
    if len(pieces) > 1:
        # As in ``joined``: attempts' pieces follow one another, except for stray steps.
        x = x[np.argsort(np.concatenate([piece.steps for _, piece in pieces]), kind="stable")]
    there = np.isfinite(x)
    steps, y = joined.steps, joined.values
    if not there.all():
        steps, x, y = steps[there], x[there], y[there]
    if len(x) > 1 and (np.diff(x) < 0).any():
        # A clock was set back.
        by_x = np.argsort(x, kind="stable")
        steps, x, y = steps[by_x], x[by_x], y[by_x]
    return _Curve(steps, x, y)


def _lookup(axis: Points, steps: Ints) -> Floats:
    """Return the axis' value at each step; NaN where it has none."""
    if np.array_equal(axis.steps, steps):
        return axis.values
    if not len(axis):
        return np.full(len(steps), np.nan)
    at = np.minimum(np.searchsorted(axis.steps, steps), len(axis) - 1)
    return np.where(axis.steps[at] == steps, axis.values[at], np.nan)


def _draw(run_id: str, name: str, curve: _Curve, wanted: Wanted) -> SeriesData:
    y = smooth(curve.y, wanted.smoothing or 0.0)
    inside = slice(
        0 if wanted.first is None else int(np.searchsorted(curve.x, wanted.first, "left")),
        len(curve.x)
        if wanted.last is None
        else int(np.searchsorted(curve.x, wanted.last, "right")),
    )
    steps, x, raw, y = curve.steps[inside], curve.x[inside], curve.y[inside], y[inside]
    nonfinite = steps[~np.isfinite(raw)][:_MAX_NONFINITE].tolist()
    total = len(steps)
    low = high = None
    exact = wanted.exact or total <= wanted.points
    if not exact:
        reduced = reduce(x, y, wanted.points)
        steps, x, y = steps[reduced.last], x[reduced.last], y[reduced.last]
        low, high = reduced.low.tolist(), reduced.high.tolist()
    return SeriesData(
        run_id=run_id,
        name=name,
        x_axis=wanted.x_axis,
        exact=exact,
        total_points=total,
        step=steps.tolist(),
        x=x.tolist(),
        y=y.tolist(),
        low=low,
        high=high,
        nonfinite=nonfinite,
    )


def first_time(loaded: Mapping[Key, Points], run: int, known: Sequence[AttemptStart]) -> float:
    """Return the time of the first point of the run's first attempt that has points."""
    times = (loaded.get((run, index.TIME, start.attempt), EMPTY).values for start in known)
    return next((float(values[0]) for values in times if len(values)), 0.0)


_BLOCK = 32
"""How many values a block has: each level of the recursion takes as many steps in Python."""


@dataclass(frozen=True)
class Reduced:
    """A reduced series; ``last`` holds the index of each bucket's last point in the input."""

    last: Ints
    low: Floats
    high: Floats


def smooth(values: Floats, weight: float) -> Floats:
    """Smooth by a debiased exponential moving average, as W&B and TensorBoard do.

    ``s[n] = w s[n-1] + (1-w) y[n]``, divided by ``1 - w^(n+1)``. NaN and infinities pass
    unchanged and do not enter the average.
    """
    if weight == 0.0 or len(values) == 0:
        return values
    finite = np.isfinite(values)
    if finite.all():
        return _debiased(values, weight)
    smoothed = values.copy()
    smoothed[finite] = _debiased(values[finite], weight)
    return smoothed


def reduce(x: Floats, y: Floats, points: int) -> Reduced:
    """Reduce to buckets of equal width over the range of ascending ``x``; omit empty ones.

    ``low`` and ``high`` span a bucket's values without NaN; they are NaN if all values are.
    """
    edges = x[0] + np.arange(points) * ((x[-1] - x[0]) / points)
    starts = np.searchsorted(x, edges, side="left")
    starts = starts[np.diff(starts, prepend=-1) > 0]
    starts = starts[starts < len(x)]
    ends = np.append(starts[1:], len(x))
    return Reduced(
        last=(ends - 1).astype(np.int64),
        low=np.fmin.reduceat(y, starts),
        high=np.fmax.reduceat(y, starts),
    )


def _debiased(values: Floats, weight: float) -> Floats:
    averages = (1.0 - weight) * _decayed(values, weight)
    # Past this many values the correction rounds to exactly 1.
    count = min(len(values), int(40.0 / (1.0 - weight)) + 1)
    averages[:count] /= -np.expm1(np.log(weight) * np.arange(1, count + 1))
    return averages


def _decayed(values: Floats, weight: float) -> Floats:
    """Compute ``s[n] = w s[n-1] + y[n]`` from ``s[-1] = 0``, for all blocks at once.

    Within a block it goes value by value. The sum that each block carries into the next follows
    the same recursion, over the blocks' last sums with the weight of a whole block.
    """
    count = len(values)
    blocks = -(-count // _BLOCK)
    padded = np.zeros(blocks * _BLOCK)
    padded[:count] = values
    sums = padded.reshape(blocks, _BLOCK)
    for place in range(1, _BLOCK):
        sums[:, place] += weight * sums[:, place - 1]
    if blocks > 1:
        powers: Floats = np.power(weight, np.arange(1.0, _BLOCK + 1.0))
        carried = np.zeros(blocks)
        carried[1:] = _decayed(sums[:-1, -1], float(powers[-1]))
        sums += carried[:, None] * powers
    return padded[:count]
