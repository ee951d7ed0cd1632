"""Groups of compared runs that differ only in their seed, and the differences between groups."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from lehr.analysis.noise import Noise, is_value
from lehr.analysis.significance import Group, Significance, judge, mean_note
from lehr.metric_goal import Goal

_OWN_NOISE = 3
"""Seeds from which two groups are judged by their own noise; with fewer, by that of all groups."""


@dataclass(frozen=True)
class SeededRun:
    run_id: str
    name: str
    factors: str
    """Equal for runs of one group."""
    seed: Any
    """None for a program that has no argument for it."""
    value: float | None
    incomparable: bool = False
    """It has no value, or one of another held-out set than the baseline."""


@dataclass(frozen=True)
class SeedGroup:
    name: str
    """Of its first run with a value."""
    values: Mapping[Any, float]
    """By seed. A repetition of a seed counts once: it shows nothing about other seeds."""
    run_ids: tuple[str, ...]
    seeds: int
    """Different ones, also of runs without a value."""
    incomparable: bool
    """None of its runs has a value to compare with the baseline."""

    @property
    def group(self) -> Group:
        return Group(self.name, tuple(self.values.values()))

    @property
    def finite(self) -> list[float]:
        return [value for value in self.values.values() if is_value(value)]


@dataclass(frozen=True)
class GroupDifference:
    """The difference between two groups."""

    base_ids: tuple[str, ...]
    run_ids: tuple[str, ...]
    found: Significance


def grouped(members: Iterable[SeededRun]) -> list[SeedGroup]:
    """Return the groups in the order of their first runs, so that the baseline's is the first."""
    groups: dict[str, list[SeededRun]] = {}
    for member in members:
        groups.setdefault(member.factors, []).append(member)
    found = []
    for group in groups.values():
        values: dict[Any, float] = {}
        for member in group:
            if member.value is not None:
                values.setdefault(member.seed, member.value)
        found.append(
            SeedGroup(
                next((m.name for m in group if m.value is not None), group[0].name),
                values,
                tuple(member.run_id for member in group),
                len({repr(member.seed) for member in group}),
                all(member.incomparable for member in group),
            )
        )
    return found


def noise_note(groups: Sequence[SeedGroup]) -> str:
    """Return why there is no noise, where no group has two finite values."""
    if all(group.seeds < 2 for group in groups):
        return "no two of these runs differ only in their seed"
    return "of the runs that differ only in their seed, no two have a finite value to compare"


def means(groups: Sequence[SeedGroup], metric: str) -> tuple[str, ...]:
    """Return the mean of each group with several seeds, as a sentence."""
    found = (mean_note(group.group, metric) for group in groups)
    return tuple(sentence for sentence in found if sentence is not None)


def gaps(
    groups: Sequence[SeedGroup], noise: Noise | None, metric: str, goal: Goal | None
) -> tuple[GroupDifference, ...]:
    """Compare the first group with each other one, but for those of other held-out sets.

    Args:
        groups: the baseline's first.
        noise: pooled over all groups.
        metric: name of the values.
        goal: of the metric; None where it is not known.
    """
    if not groups or not groups[0].values:
        return ()
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
        found.append(GroupDifference(base.run_ids, other.run_ids, judged))
    return tuple(found)
