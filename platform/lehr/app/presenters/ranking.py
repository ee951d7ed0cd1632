"""Rank the trials of a sweep, and the points of its seeds. Pure: values in, verdict out.

A loss at step 300 and a loss at step 1,000 are not comparable, so trials are compared at one step:
the last that at least half of the training or completed trials, and at least two, have reached.
Trials that have not reached it have no rank, and neither has a non-finite loss.
"""

from __future__ import annotations

import json
import math
from bisect import bisect_left
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from lehr.analysis.batches import HeldOut
from lehr.analysis.lr_fit import within_reach
from lehr.analysis.noise import Noise, is_value, pooled_noise
from lehr.analysis.significance import PLUS_MINUS, Group, Significance, band, judge, within_noise
from lehr.base import formats
from lehr.base.names import Goal, is_rate, is_seed


@dataclass(frozen=True)
class Point:
    """One point of the space, over its seeds."""

    parameters: Mapping[str, Any]  # Without the seed.
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
        noise = pooled_noise([self.values])
        return None if noise is None else noise.deviation


def points_of(
    trials: Sequence[tuple[str, Mapping[str, Any]]], values: Mapping[str, float], goal: str
) -> list[Point]:
    """Return the sweep's points in its order, ranked by the mean over their seeds.

    ``values`` are finite, where trials are compared.
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
        Group(formats.point(second.parameters), second.values),
        Group(formats.point(first.parameters), first.values),
        goal=goal,
        metric=metric,
        noise=spread,
        measure=f"lehr seeds {first.run_ids[0]} --n 3" if repeatable else None,
    )


def seed_notes(found: Sequence[Point], spread: Noise | None, metric: str, goal: Goal) -> list[str]:
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


def _gap(first: Point, other: Point) -> float:
    return (other.mean or 0.0) - (first.mean or 0.0)


_NAMED = 3
GAVE_UP = frozenset({"failed", "cancelled", "pruned"})
ValueAt = Callable[[str, int], float | None]  # (run id, step) -> the metric's value there, if any.


@dataclass(frozen=True)
class TrialStatus:
    """The newest value of the sweep's metric of a trial's run."""

    run_id: str
    parameters: Mapping[str, Any]
    state: str
    value: float | None = None
    step: int | None = None
    cause: str | None = None
    repeats: str | None = None
    """The run that this one repeats with another seed, where it is not a trial itself."""

    @property
    def diverged(self) -> bool:
        unusable = self.value is not None and not is_value(self.value)
        return self.cause == "nan_loss" or unusable


@dataclass(frozen=True)
class SweepVerdict:
    """``ranks`` and ``values`` (at ``step``) contain only ranked runs."""

    step: int | None
    ranks: Mapping[str, int]
    values: Mapping[str, float]

    points: Sequence[Point] = ()  # The trials by their parameters, without seeds.

    held_out: HeldOut | None = None
    """For the runs with a value; None where the metric is not measured on a held-out set."""

    @property
    def best(self) -> str | None:
        return next((run_id for run_id, rank in self.ranks.items() if rank == 1), None)


def rank(
    standings: Sequence[TrialStatus],
    goal: Goal,
    value_at: ValueAt,
    held_out: Mapping[str, str | None] | None = None,
    repetitions: Sequence[TrialStatus] = (),
) -> SweepVerdict:
    """Rank trials at equal step; equal values share a rank, and the first of them is the best.

    Points with several seeds are ranked by their means: each trial has its point's rank, and the
    best trial of the best point is the best. Values of different held-out sets are not ranked.

    Args:
        standings: of the trials, in the sweep's order.
        goal: of the sweep's metric.
        value_at: reads a value at another step.
        held_out: by run, the digest of the set that the metric was measured on; None for a metric
            that is not measured on a held-out set.
        repetitions: further seeds of trials. They count for their point once they have a value at
            the step where trials are compared, or diverged: one that still runs, failed or was
            cancelled changes nothing, and neither does one of another held-out set.
    """
    with_steps = [one for one in standings if one.step is not None]
    # A trial that was stopped early must not limit the others to its last step.
    racing = [one for one in with_steps if one.state not in GAVE_UP] or with_steps
    step = common_step([one.step for one in racing if one.step is not None])
    if step is None:
        return SweepVerdict(None, {}, {})
    values = _values(standings, step, value_at)
    sets = None
    if held_out is not None:
        sets = HeldOut.of({run_id: held_out.get(run_id) for run_id in values})
        if sets.verdict == "different":
            return SweepVerdict(step, {}, values, held_out=sets)
    repeated = _values(repetitions, step, value_at)
    members = list(standings)
    for one in repetitions:
        if one.run_id not in repeated:
            members += [one] if one.diverged else []
        elif not held_out or held_out.get(one.run_id) == held_out.get(one.repeats or ""):
            values[one.run_id] = repeated[one.run_id]
            members.append(one)
    points = points_of([(one.run_id, one.parameters) for one in members], values, goal)
    ranks = _ranks(points, values, goal, {one.run_id for one in repetitions})
    return SweepVerdict(step, ranks, values, points, sets)


def _values(standings: Sequence[TrialStatus], step: int, value_at: ValueAt) -> dict[str, float]:
    """Return the finite values at a step, of the runs that have reached it."""
    reached = [one for one in standings if one.step is not None and one.step >= step]
    read = {
        one.run_id: one.value if one.step == step else value_at(one.run_id, step) for one in reached
    }
    return {run_id: v for run_id, v in read.items() if v is not None and is_value(v)}


def _ranks(
    points: Sequence[Point], values: Mapping[str, float], goal: Goal, repetitions: Collection[str]
) -> dict[str, int]:
    """Return the ranks in their order; of a point, trials come before their repetitions."""
    sign = 1 if goal == "minimize" else -1
    ranked = [
        (point.rank, run_id in repetitions, sign * values[run_id], run_id)
        for point in points
        if point.rank is not None
        for run_id in point.run_ids
    ]
    return {run_id: place for place, _, _, run_id in sorted(ranked, key=lambda one: one[:3])}


def common_step(steps: Sequence[int]) -> int | None:
    """Return the last step that at least half of them have reached, and at least two if there are
    two: one value alone has nothing to be compared with.
    """
    if not steps:
        return None
    enough = max(min(2, len(steps)), (len(steps) + 1) // 2)
    return sorted(steps, reverse=True)[enough - 1]


def notes(
    standings: Sequence[TrialStatus],
    verdict: SweepVerdict,
    *,
    metric: str,
    tried: Mapping[str, Sequence[Any]],
    unit: str = "step",
) -> list[str]:
    """Return notes on the result. ``tried``: each parameter's values."""
    found: list[str] = []
    best = next((one for one in standings if one.run_id == verdict.best), None)
    if len(verdict.values) > 1 == len(set(verdict.values.values())):
        found.append(
            f"All {len(verdict.values)} trials with a rank have the same {metric}: what was varied "
            f"makes no difference. Check that it takes effect: {', '.join(tried)}."
        )
    elif best is not None:
        found += _edges(best, tried)
    if verdict.step is not None:
        behind = [
            one
            for one in standings
            if one.run_id not in verdict.ranks and _lives(one) and (one.step or 0) < verdict.step
        ]
        if behind:
            where = f"step {verdict.step:,}" if unit == "step" else f"{verdict.step:,} tokens"
            found.append(f"Ranked at {where}; {_trials(len(behind))} not at that step yet.")
    diverged = [one for one in standings if one.diverged]
    if diverged:
        shared = _shared(diverged, standings)
        which = f", all at {shared}" if shared else f": {_named(diverged)}"
        found.append(f"{len(diverged)} diverged{which}.")
    failed = [one for one in standings if one.state == "failed" and not one.diverged]
    if failed:
        found.append(f"{_trials(len(failed))} failed: {_named(failed)}.")
    if len(verdict.ranks) == 1 < len(standings):
        found.append("Only one trial has a rank, so there is nothing to compare it with yet.")
    return found


def _edges(best: TrialStatus, tried: Mapping[str, Sequence[Any]]) -> list[str]:
    """Report each number whose best value is the smallest or largest that was tried.

    Seeds have no order: a larger one is not expected to be better. Of two values one always is the
    best; only of rates it is known that others beyond it are worth a trial.
    """
    found = []
    for path, values in tried.items():
        if is_seed(path):
            continue
        if not all(isinstance(v, int | float) and not isinstance(v, bool) for v in values):
            continue
        value, numbers, far = best.parameters.get(path), sorted(set(values)), ""
        if value is not None and is_rate(path):
            near = within_reach(numbers, [value])
            others = [formats.parameter(one, path) for one in numbers if one not in near]
            far = f", but for {', '.join(others)}, far off" if others else ""
            numbers = near
        if len(numbers) < (2 if is_rate(path) else 3) or value not in {numbers[0], numbers[-1]}:
            continue
        side, further = ("smallest", "smaller") if value == numbers[0] else ("largest", "larger")
        found.append(
            f"The best is at the edge of the values tried: {path} {formats.parameter(value, path)} "
            f"is the {side}{far}; a {further} one may be better."
        )
    return found


def _lives(one: TrialStatus) -> bool:
    return one.state != "completed" and one.state not in GAVE_UP


def _trials(count: int) -> str:
    return f"{count} trial{'' if count == 1 else 's'}"


def _shared(some: Sequence[TrialStatus], standings: Sequence[TrialStatus]) -> str:
    """Return the settings that several of the trials have in common, and not all."""
    common = [one for one in some[0].parameters.items() if len(some) > 1]
    for one in some:
        common = [setting for setting in common if setting in one.parameters.items()]
    varied = {
        path for one in standings for path, value in common if one.parameters.get(path) != value
    }
    return formats.point({path: value for path, value in common if path in varied})


def _named(standings: Sequence[TrialStatus]) -> str:
    more = len(standings) - _NAMED
    rest = [f"and {more} more"] if more > 0 else []
    return "; ".join([*(formats.point(one.parameters) for one in standings[:_NAMED]), *rest])
