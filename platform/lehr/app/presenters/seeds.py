"""Points of a sweep with several seeds: their means, and the noise between seeds. Pure."""

from __future__ import annotations

import json
import math
from bisect import bisect_left
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from lehr.analysis.noise import Noise, pooled_deviation, pooled_noise
from lehr.analysis.significance import PLUS_MINUS, Group, Significance, band, judge, within_noise
from lehr.base import formats
from lehr.base.names import Goal, is_seed


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
    """None if no point has several seeds."""
    return pooled_noise([point.values for point in found])


def noise_band(found: Sequence[Point], spread: Noise | None) -> float | None:
    """Return the difference below which two points' means cannot be distinguished: half of the
    95 % interval, with the smallest number of seeds that a point has.
    """
    if spread is None:
        return None
    seeds = min(len(point.values) for point in found if len(point.values) > 1)
    return band(spread, (seeds, seeds))


def lead(
    found: Sequence[Point],
    spread: Noise | None,
    metric: str,
    goal: Goal,
    *,
    repeatable: bool = True,
) -> Significance | None:
    """Compare the best point with the next; None if there is no other. Without a ``spread`` the
    sentence names the command that measures it, if the runs are ``repeatable`` with another seed.
    """
    ordered = _ordered(found)
    if len(ordered) < 2:
        return None
    first, second = ordered[:2]
    return judge(
        Group(name(second.parameters), second.values),
        Group(name(first.parameters), first.values),
        goal=goal,
        metric=metric,
        noise=spread,
        measure=f"lehr seeds {first.run_ids[0]} --n 3" if repeatable else None,
    )


def notes(found: Sequence[Point], spread: Noise | None, metric: str, goal: Goal) -> list[str]:
    """Compare the best point with the others, by the noise between seeds."""
    if spread is None:
        return []
    differ = f"differ by {spread.deviation:.3g} in {metric} (standard deviation)"
    sentences = [f"Seeds of one point {differ}."]
    leads = lead(found, spread, metric, goal)
    if leads is None:
        return sentences
    sentences.append(f"{leads.sentence} {PLUS_MINUS}")
    first, _, *others = _ordered(found)
    tied = sum(
        within_noise(_gap(first, point), spread, (len(first.values), len(point.values)))
        for point in others
    )
    if leads.verdict == "within_noise" and tied:
        more = f"{tied} more {'point is' if tied == 1 else 'points are'}"
        sentences.append(f"{more} within seed noise of the best.")
    return sentences


def _ordered(found: Sequence[Point]) -> list[Point]:
    return sorted((p for p in found if p.mean is not None), key=lambda point: point.rank or 0)


def name(parameters: Mapping[str, Any]) -> str:
    """Return a point's parameters as a name: ``lr 1e-3, width 64``."""
    return ", ".join(
        f"{path.rpartition('.')[2]} {formats.parameter(value, path)}"
        for path, value in parameters.items()
    )


def _gap(first: Point, other: Point) -> float:
    return (other.mean or 0.0) - (first.mean or 0.0)
