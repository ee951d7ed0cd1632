"""Groups of runs: by what a user names, and those that differ only in their seed."""

from __future__ import annotations

import math
import re
import statistics
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from decimal import ROUND_HALF_UP, Context, Decimal
from typing import Any

from lehr.analysis.noise import Noise, is_value
from lehr.analysis.significance import Group, judge, mean_note
from lehr.base import formats
from lehr.base.names import Goal, is_seed
from lehr.schemas.comparisons import GapView

_FEW = 12
"""A metric with at most so many values, all of them whole numbers, has a group for each; a number
of the config with at most so many.
"""
_QUARTERED = 8  # So many runs are divided into four parts, fewer into two.
_OTHERS, _FAR, _USUAL = 3, 20, 0.02  # Far: 20 median deviations, each at least 2 % of the median.
_DIGITS = 17
_DIVIDED = re.compile(r"(.+?)\s*<\s*([-+\d.eE]+)")


class UnknownKey(Exception):
    """No run has a path, a metric or a tag of this name."""


@dataclass(frozen=True)
class GroupedRun:
    run_id: str
    config: Mapping[str, Any]  # By dotted path.
    project: str
    tags: Sequence[str] = ()
    metrics: Mapping[str, float] = field(default_factory=dict)  # The newest value of each.


def group_names(runs: Sequence[GroupedRun], by: str) -> list[str]:
    """Return the name of each run's group. ``by`` is one key, or several with commas between them.

    Raises:
        UnknownKey: with the key that no run has.
    """
    columns = [_column(runs, key.strip()) for key in by.split(",") if key.strip()]
    return [" · ".join(parts) for parts in zip(*columns, strict=True)]


def spread(values: Iterable[float | None]) -> tuple[int, float | None, float | None]:
    """Return number, mean and sample standard deviation of the finite values."""
    known = [value for value in values if value is not None and math.isfinite(value)]
    mean = statistics.fmean(known) if known else None
    return len(known), mean, statistics.stdev(known) if len(known) > 1 else None


def far_runs(values: Mapping[str, float | None], goal: Goal | None) -> list[str]:
    """Return the runs that end far worse than the others, the worst first, as one does that
    diverged to a finite value: no mean has them. Without a goal, or of few runs, none is far.

    ``values`` are of a metric of quality: a slow run (``is_speed``) is no outlier to hide.
    """
    known = {run: v for run, v in values.items() if v is not None and math.isfinite(v)}
    if goal is None or len(known) <= _OTHERS:
        return []
    sign = -1 if goal == "maximize" else 1
    # Without any other run of the worse half, both medians would be the same.
    others = sorted(sign * value for value in known.values())[:-1]
    middle = statistics.median(others)
    usual = statistics.median(abs(value - middle) for value in others)
    reach = _FAR * max(usual, _USUAL * abs(middle))
    far = [run for run, value in known.items() if sign * value - middle > reach]
    return sorted(far, key=lambda run: -sign * known[run])


def edges(values: Iterable[float]) -> list[float] | None:
    """Return where the parts begin, except the first; None if each value is a group of its own."""
    finite = sorted(value for value in values if math.isfinite(value))
    if len(set(finite)) <= _FEW and all(float(value).is_integer() for value in finite):
        return None
    parts = 4 if len(finite) >= _QUARTERED else 2
    found: list[float] = []
    for part in range(1, parts):
        # Equal values are in one part.
        at = finite.index(finite[part * len(finite) // parts])
        if at and (edge := _between(finite[at - 1], finite[at])) not in found:
            found.append(edge)
    return found


def bin_name(
    name: str, value: float | None, at: Sequence[float] | None, write: Callable[[float], str]
) -> str:
    """Name the group of a value: ``val/loss 1.8 to 2``."""
    if value is None:
        return f"no {name}"
    if not math.isfinite(value):
        return f"{name} not finite"
    if at is None:
        return f"{name} {write(value)}"
    if not at:
        return name
    below = sum(edge <= value for edge in at)
    if below == 0:
        return f"{name} below {write(at[0])}"
    if below == len(at):
        return f"{name} from {write(at[-1])}"
    return f"{name} {write(at[below - 1])} to {write(at[below])}"


def _column(runs: Sequence[GroupedRun], key: str) -> list[str]:
    if key == "project":
        return [run.project for run in runs]
    if key == "tag":
        return [", ".join(sorted(run.tags)) or "no tag" for run in runs]
    if key.startswith("tag:"):
        tag = key.removeprefix("tag:")
        return [tag if tag in run.tags else f"not {tag}" for run in runs]
    if paths := _paths(runs, key):
        path = paths[0]
        [last] = formats.short_paths([path])
        values: list[Any] = [
            next((run.config[path] for path in paths if path in run.config), None) for run in runs
        ]
        numbers = [value for value in values if type(value) in {int, float}]
        rest = len(values) - values.count(None) - len(numbers)
        if not rest and len(set(numbers)) > _FEW and not is_seed(path):
            at = edges(numbers)
            return [
                bin_name(last, value, at, lambda edge: formats.parameter(edge, path))
                for value in values
            ]
        return [
            f"no {last}" if value is None else f"{last} {formats.parameter(value, path)}"
            for value in values
        ]
    name, edge = _divided(key)
    measured = [run.metrics.get(name) for run in runs]
    if all(value is None for value in measured):
        raise UnknownKey(name)
    at = edges(value for value in measured if value is not None) if edge is None else [edge]
    return [bin_name(name, value, at, plain) for value in measured]


def _paths(runs: Sequence[GroupedRun], key: str) -> list[str]:
    """Return the paths that a key means: itself, or those that end with it, the shortest first.

    Of each run its first counts: what another program names so is no reason to have none.
    """
    paths = {path for run in runs for path in run.config}
    ends = [path for path in paths if path.lower().endswith(f".{key.lower()}")]
    return [key] if key in paths else sorted(ends, key=lambda path: (len(path), path))


def _divided(key: str) -> tuple[str, float | None]:
    found = _DIVIDED.fullmatch(key)
    try:
        return (found[1], float(found[2])) if found else (key, None)
    except ValueError:
        return key, None


def _between(low: float, high: float) -> float:
    """Return the shortest number that is more than ``low`` and at most ``high``."""
    middle = low + (high - low) / 2
    for digits in range(1, _DIGITS + 1):
        # A tie rounds up, not to the even digit.
        rounding = Context(prec=digits, rounding=ROUND_HALF_UP)
        found = float(rounding.create_decimal(Decimal(middle)))
        if low < found <= high:
            return found
    return high


def plain(value: float) -> str:
    """Write an edge between values of a metric: 50000, 1.5e-7."""
    mantissa, e, exponent = f"{value:.12g}".partition("e")
    return f"{mantissa}e{int(exponent)}" if e else mantissa


_OWN_NOISE = 3
"""Seeds from which two groups are judged by their own noise; with fewer, by that of all groups."""


@dataclass(frozen=True)
class SeededRun:
    run_id: str
    name: str
    factors: str  # Equal for runs of one group.
    seed: Any  # None for a program that has no argument for it.
    value: float | None
    incomparable: bool = False  # It has no value, or one of another held-out set than the baseline.


@dataclass(frozen=True)
class SeedGroup:
    name: str  # Of its first run with a value.
    values: Mapping[Any, float]
    """By seed. Repetitions of a seed are one value, their mean: they show nothing about others."""
    run_ids: list[str]
    seeds: int  # Different ones, also of runs without a value.
    incomparable: bool  # None of its runs has a value to compare with the baseline.
    far: str = ""  # Who is left out, in words.

    @property
    def group(self) -> Group:
        return Group(self.name, tuple(self.values.values()))

    @property
    def finite(self) -> list[float]:
        return [value for value in self.values.values() if is_value(value)]


def grouped(members: Iterable[SeededRun], goal: Goal | None = None) -> list[SeedGroup]:
    """Return the groups in the order of their first runs, so that the baseline's is the first.

    Runs that are far by ``goal`` are no members; the others name them.
    """
    groups: dict[str, list[SeededRun]] = {}
    for member in members:
        groups.setdefault(member.factors, []).append(member)
    found = []
    for every in groups.values():
        far = far_runs({member.run_id: member.value for member in every}, goal)
        group = [member for member in every if member.run_id not in far]
        left = ", ".join(member.name for member in every if member.run_id in far)
        by_seed: dict[Any, list[float]] = {}
        for member in group:
            if member.value is not None:
                by_seed.setdefault(member.seed, []).append(member.value)
        found.append(
            SeedGroup(
                next((m.name for m in group if m.value is not None), group[0].name),
                {seed: sum(values) / len(values) for seed, values in by_seed.items()},
                [member.run_id for member in group],
                len({repr(member.seed) for member in group}),
                all(member.incomparable for member in group),
                f" Without {left}, far off." if left else "",
            )
        )
    return found


def noise_note(groups: Sequence[SeedGroup], noise: Noise | None) -> str:
    """Return where the noise is from, if not from the groups, or why there is none."""
    if noise is not None:
        return noise.sweep and f"from sweep {noise.sweep}"
    if all(group.seeds < 2 for group in groups):
        return "no two of these runs differ only in their seed"
    return "of the runs that differ only in their seed, no two have a finite value to compare"


def means(groups: Sequence[SeedGroup], metric: str) -> list[str]:
    """Return the mean of each group with several seeds, as a sentence."""
    found = ((mean_note(group.group, metric), group.far) for group in groups)
    return [sentence + far for sentence, far in found if sentence is not None]


def gaps(
    groups: Sequence[SeedGroup], noise: Noise | None, metric: str, goal: Goal | None
) -> list[GapView]:
    """Compare the first group with each other one, but for those of other held-out sets.

    ``noise`` is pooled over all groups.
    """
    if not groups or not groups[0].values:
        return []
    base, *others = groups
    found = []
    for other in others:
        if other.incomparable:
            continue
        few = min(len(base.values), len(other.values)) < _OWN_NOISE
        judged = judge(
            base.group,
            other.group,
            goal=goal,
            metric=metric,
            noise=noise if few else None,
            measure=None if None in base.values else f"lehr seeds {base.run_ids[0]} --n 3",
        )
        ids = {"base_ids": base.run_ids, "run_ids": other.run_ids}
        sentence = judged.sentence + base.far + other.far
        found.append(GapView(**ids, **vars(judged) | {"sentence": sentence}))
    return found
