"""Whether a series over hours is flat: its slope, with an interval, within each life of a process.

Pure. A process that is started again begins at another level, so each life has a level of its own and
all share one slope. Its first minutes are left out: caches fill. What is left is averaged over minutes,
and the interval is widened for values that follow the ones before.
"""

from __future__ import annotations

import itertools
import math
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass
from statistics import fmean
from typing import Literal

from lehr.analysis.student import quantile

Verdict = Literal["flat", "grows", "not known yet"]
FEWEST = 8
"""Averages below which no interval is given."""


@dataclass(frozen=True)
class Point:
    hours: float
    life: str
    """The process, or what else begins anew: each has a level of its own."""
    value: float


@dataclass(frozen=True)
class Trend:
    first: float
    last: float
    most: float
    averages: int
    slope: float
    """Per hour."""
    low: float
    high: float
    """95 % interval of the slope; infinite if there are too few values."""

    def verdict(self, limit: float) -> Verdict:
        """``flat``: the whole interval is below the limit; ``grows``: all of it is above zero and
        its middle above the limit.
        """
        if self.high <= limit:
            return "flat"
        if self.low > 0 and self.slope > limit:
            return "grows"
        return "not known yet"


def trend(points: Sequence[Point], *, warm_up_h: float, average_h: float) -> Trend | None:
    """Return the common slope of all lives; None without any value after the warm-up."""
    lives: dict[str, list[Point]] = defaultdict(list)
    for point in sorted(points, key=lambda point: point.hours):
        lives[point.life].append(point)
    series = []
    for life in lives.values():
        warm = [one for one in life if one.hours >= life[0].hours + warm_up_h]
        averaged = _averages(warm, average_h)
        if averaged:
            series.append(averaged)
    values = [value for one in series for _, value in one]
    if not values:
        return None
    slope, low, high = _slope(series)
    most = max(point.value for point in points)
    return Trend(values[0], values[-1], most, len(values), slope, low, high)


def _averages(points: Sequence[Point], width_h: float) -> list[tuple[float, float]]:
    if not width_h:
        return [(point.hours, point.value) for point in points]
    blocks: dict[int, list[Point]] = defaultdict(list)
    for point in points:
        blocks[int((point.hours - points[0].hours) / width_h)].append(point)
    return [(fmean(p.hours for p in b), fmean(p.value for p in b)) for b in blocks.values()]


def _slope(series: Sequence[Sequence[tuple[float, float]]]) -> tuple[float, float, float]:
    """Least squares with a level for each life; (slope, lower end, upper end)."""
    offsets = []
    for life in series:
        x, y = fmean(h for h, _ in life), fmean(v for _, v in life)
        offsets.append([(h - x, v - y) for h, v in life])
    spread = sum(h * h for life in offsets for h, _ in life)
    number = sum(map(len, offsets))
    freedom = number - len(offsets) - 1
    if not spread:
        return 0.0, -math.inf, math.inf
    slope = sum(h * v for life in offsets for h, v in life) / spread
    if number < FEWEST or freedom < 1:
        return slope, -math.inf, math.inf
    rest = [[v - slope * h for h, v in life] for life in offsets]
    squares = sum(e * e for life in rest for e in life)
    error = math.sqrt(squares / freedom / spread * _inflation(rest, squares))
    reach = quantile(0.975, freedom) * error
    return slope, slope - reach, slope + reach


def _inflation(rest: Sequence[Sequence[float]], squares: float) -> float:
    """Return the factor of the variance for values that follow those before them (AR(1))."""
    if not squares:
        return 1.0
    follow = sum(a * b for life in rest for a, b in itertools.pairwise(life))
    share = min(0.9, max(0.0, follow / squares))
    return (1 + share) / (1 - share)
