"""Points of a sweep with several seeds: their means, and the noise between seeds. Pure."""

from __future__ import annotations

import json
import math
from bisect import bisect_left
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from lehr.analysis.noise import pooled_deviation


@dataclass(frozen=True)
class Point:
    """One point of the space, over its seeds."""

    parameters: Mapping[str, Any]
    """Without the seed."""
    run_ids: tuple[str, ...]
    values: tuple[float, ...] = ()
    """Of its seeds, where all of them have a finite value; else empty."""
    rank: int | None = None

    @property
    def mean(self) -> float | None:
        return math.fsum(self.values) / len(self.values) if self.values else None

    @property
    def spread(self) -> float | None:
        """Sample standard deviation between its seeds; None for a single one."""
        return pooled_deviation([self.values])


@dataclass(frozen=True)
class Noise:
    deviation: float
    """Sample standard deviation between seeds, pooled over the points."""
    seeds: int
    """Smallest number of seeds per point."""

    @property
    def band(self) -> float:
        """Return the difference below which two points' means cannot be distinguished: twice the
        standard error of their difference, s * sqrt(2 / n).
        """
        return 2.0 * self.deviation * math.sqrt(2.0 / self.seeds)


def is_seed(path: str) -> bool:
    return path.rpartition(".")[2] == "seed"


def points(
    trials: Sequence[tuple[str, Mapping[str, Any]]], values: Mapping[str, float], goal: str
) -> list[Point]:
    """Return the sweep's points in its order, ranked by the mean over their seeds.

    Args:
        trials: run id and parameters of each.
        values: the metric where trials are compared, finite, by run id.
        goal: minimize or maximize.
    """
    groups: dict[str, list[tuple[str, Mapping[str, Any]]]] = {}
    for run_id, parameters in trials:
        varied = {path: value for path, value in parameters.items() if not is_seed(path)}
        key = json.dumps(varied, sort_keys=True, default=repr)
        groups.setdefault(key, []).append((run_id, varied))
    found = [_point(members, values) for members in groups.values()]
    sign = 1 if goal == "minimize" else -1
    means = sorted(sign * point.mean for point in found if point.mean is not None)
    return [
        point
        if point.mean is None
        else replace(point, rank=1 + bisect_left(means, sign * point.mean))
        for point in found
    ]


def _point(members: Sequence[tuple[str, Mapping[str, Any]]], values: Mapping[str, float]) -> Point:
    run_ids = tuple(run_id for run_id, _ in members)
    known = [values[run_id] for run_id in run_ids if run_id in values]
    if len(known) < len(run_ids):
        return Point(members[0][1], run_ids)
    return Point(members[0][1], run_ids, tuple(known))


def noise(found: Sequence[Point]) -> Noise | None:
    """None where no point has several seeds to tell it."""
    several = [point.values for point in found if len(point.values) > 1]
    deviation = pooled_deviation(several)
    return None if deviation is None else Noise(deviation, min(map(len, several)))


def notes(found: Sequence[Point], spread: Noise | None, metric: str) -> list[str]:
    """Compare the lead of the best point with the spread between seeds, in a sentence."""
    if spread is None:
        return []
    ordered = sorted((p for p in found if p.mean is not None), key=lambda point: point.rank or 0)
    differ = f"differ by {spread.deviation:.3g} in {metric} (standard deviation)"
    sentence = f"Seeds of one point {differ}"
    if len(ordered) < 2:
        return [f"{sentence}."]
    first, second = ordered[:2]
    assert first.mean is not None
    assert second.mean is not None
    gap = abs(second.mean - first.mean)
    if gap > spread.band:
        lead = f"the best point leads by {gap:.3g}, more than the {spread.band:.3g} of chance"
        return [f"{sentence}; {lead}."]
    tied = [p for p in ordered[1:] if abs((p.mean or 0.0) - first.mean) <= spread.band]
    who = "the next point is" if len(tied) == 1 else f"the next {len(tied)} points are"
    near = f"{who} within {spread.band:.3g} of the best, which may be chance"
    return [f"{sentence}; {near}: more seeds would decide."]
