"""Points of a sweep with several seeds: their means, and the noise between seeds. Pure."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True)
class Point:
    """One point of the space, over its seeds."""

    parameters: Mapping[str, Any]
    """Without the seed."""
    run_ids: tuple[str, ...]
    mean: float | None = None
    """Mean over its seeds, where all of them have a finite value; else None."""
    spread: float | None = None
    """Sample standard deviation between its seeds; None for a single one."""
    rank: int | None = None


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
        else Point(
            point.parameters,
            point.run_ids,
            point.mean,
            point.spread,
            1 + means.index(sign * point.mean),
        )
        for point in found
    ]


def _point(members: Sequence[tuple[str, Mapping[str, Any]]], values: Mapping[str, float]) -> Point:
    run_ids = tuple(run_id for run_id, _ in members)
    known = [values[run_id] for run_id in run_ids if run_id in values]
    if len(known) < len(run_ids):
        return Point(members[0][1], run_ids)
    mean = math.fsum(known) / len(known)
    spread = None
    if len(known) > 1:
        spread = math.sqrt(math.fsum((v - mean) ** 2 for v in known) / (len(known) - 1))
    return Point(members[0][1], run_ids, mean, spread)


def noise(found: Sequence[Point]) -> Noise | None:
    """Return the noise between seeds; None if no point has several seeds."""
    spreads = [(len(point.run_ids), point.spread) for point in found if point.spread is not None]
    freedom = sum(count - 1 for count, _ in spreads)
    if not freedom:
        return None
    total = math.fsum((count - 1) * spread**2 for count, spread in spreads)
    return Noise(math.sqrt(total / freedom), min(count for count, _ in spreads))


def notes(found: Sequence[Point], between: Noise | None, metric: str) -> list[str]:
    """Return what the noise means for the best point."""
    if between is None:
        return []
    ordered = sorted((p for p in found if p.mean is not None), key=lambda point: point.rank or 0)
    sentence = (
        f"Seeds of one point differ by {between.deviation:.3g} in {metric} (standard deviation)"
    )
    if len(ordered) < 2:
        return [f"{sentence}."]
    first, second = ordered[:2]
    assert first.mean is not None
    assert second.mean is not None
    gap = abs(second.mean - first.mean)
    if gap > between.band:
        lead = f"the best point leads by {gap:.3g}, more than the {between.band:.3g} of chance"
        return [f"{sentence}; {lead}."]
    tied = [p for p in ordered[1:] if abs((p.mean or 0.0) - first.mean) <= between.band]
    who = "the next point is" if len(tied) == 1 else f"the next {len(tied)} points are"
    near = f"{who} within {between.band:.3g} of the best, which may be chance"
    return [f"{sentence}; {near}: more seeds would decide."]
