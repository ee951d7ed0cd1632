"""The mean of several runs' curves, and which of the runs have dropped out of it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

import numpy as np


class _Curve(Protocol):
    """A curve with points, by ascending steps."""

    @property
    def step(self) -> list[int]: ...
    @property
    def x(self) -> list[float]: ...
    @property
    def y(self) -> list[float]: ...


@dataclass(frozen=True)
class MeanCurve:
    """The mean of those curves that have a value, and one standard deviation on both sides."""

    step: list[int]
    x: list[float]
    y: list[float]
    low: list[float]
    high: list[float]
    counts: list[int]
    """How many have a value."""


def mean_curve(curves: Sequence[_Curve]) -> MeanCurve:
    """Return the mean at the steps of the finest curve, and of others before and after it.

    A coarser curve counts with what is between its points. Of a single value the deviation is 0.
    """
    finest = max(curves, key=lambda curve: len(curve.step))
    places = {
        step: x
        for curve in curves
        for step, x in zip(curve.step, curve.x, strict=True)
        if not finest.step[0] <= step <= finest.step[-1]
    } | dict(zip(finest.step, finest.x, strict=True))
    steps = np.array(sorted(places))
    values = np.array([np.interp(steps, c.step, c.y, np.nan, np.nan) for c in curves])
    finite = np.isfinite(values)
    counts = finite.sum(axis=0)
    there = counts > 0
    steps, counts = steps[there], counts[there]
    values, finite = values[:, there], finite[:, there]
    mean = np.where(finite, values, 0.0).sum(axis=0) / counts
    squares = np.where(finite, (values - mean) ** 2, 0.0).sum(axis=0)
    deviation = np.sqrt(squares / np.maximum(counts - 1, 1))
    return MeanCurve(
        step=steps.tolist(),
        x=[places[step] for step in steps.tolist()],
        y=mean.tolist(),
        low=(mean - deviation).tolist(),
        high=(mean + deviation).tolist(),
        counts=counts.tolist(),
    )


def dropouts(curves: Sequence[_Curve], ended: Sequence[bool]) -> str:
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
