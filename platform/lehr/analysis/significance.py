"""Whether two groups of runs differ and by how much, with a sentence that states it.

A group holds the values of runs that differ only in their seed. The difference of two means is
compared with the noise between seeds: by Welch's t test (Welch 1947, Biometrika 34, 28-35) with the
noise of these two groups, or by Student's with a noise pooled over more groups, which then is
stated. ``±`` is always half of the 95 % interval of the difference.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache, partial
from typing import Literal

from lehr.analysis.noise import BEYOND, Noise, is_value, pooled_noise
from lehr.base.names import Goal

Verdict = Literal["differs", "within_noise", "unknown", "diverged"]

PLUS_MINUS = "± is half of the 95 % interval, from the noise between seeds."
_LEVEL = 0.975
_POWER = 0.8
_MOST_SEEDS = 30


@dataclass(frozen=True)
class Group:
    """Runs that differ only in their seed."""

    name: str
    values: tuple[float, ...]
    """One for each seed; a value that is NaN, infinite or beyond all bounds diverged."""

    @property
    def diverged(self) -> int:
        return sum(not is_value(value) for value in self.values)

    @property
    def mean(self) -> float:
        return math.fsum(self.values) / len(self.values)


@dataclass(frozen=True)
class Significance:
    verdict: Verdict
    """unknown: no group has two values to estimate noise from; diverged: a value is not finite."""
    difference: float | None
    """Mean of the other group minus that of the baseline; None where a value is not finite."""
    half_width: float | None
    """Half of the difference's 95 % interval; None where the noise is unknown."""
    more_seeds: int | None
    """Further seeds that each group probably needs to decide; None: no number, or too many."""
    sentence: str


def judge(
    base: Group,
    other: Group,
    *,
    goal: Goal | None,
    metric: str,
    noise: Noise | None = None,
    measure: str | None = None,
) -> Significance:
    """Compare two groups.

    Args:
        base: the baseline.
        other: the subject of the sentence.
        goal: whether lower or higher is better; None: the sentence has only lower or higher.
        metric: name of the values.
        noise: pooled over more groups; None: that of these two groups is used.
        measure: a command that measures the noise, for the sentence where it is unknown.

    Raises:
        ValueError: a group is empty.
    """
    if not base.values or not other.values:
        raise ValueError("a group has no values")
    if base.diverged or other.diverged:
        return Significance("diverged", None, None, None, _diverged(base, other, metric))
    gap = other.mean - base.mean
    counts = len(base.values), len(other.values)
    found = _half_width(base, other, noise)
    lead = partial(_lead, base.name, other.name, gap, goal, metric)
    if found is None:
        how = "one seed each" if counts == (1, 1) else f"{_seeds(counts)}"
        ask = f": `{measure}` measures it" if measure else ""
        sentence = f"{lead()} ({how}), but the noise between seeds is not known{ask}."
        return Significance("unknown", gap, None, None, sentence)
    width, deviation = found
    pooled = f"; noise pooled over {noise.groups} groups" if noise and noise.groups > 1 else ""
    if noise and noise.sweep:
        pooled = f"; noise {noise.deviation:.2g} between seeds, from sweep {noise.sweep}"
    seeds = f"({_seeds(counts)}{pooled})"
    if abs(gap) > width:
        return Significance("differs", gap, width, None, f"{lead(width, sure=True)} {seeds}.")
    more = _more_seeds(abs(gap), deviation, min(counts))
    if more is None:
        needed = f"more than {_MOST_SEEDS} seeds each would be needed to decide"
    else:
        needed = f"about {more} more {'seed' if more == 1 else 'seeds'} each would decide"
    sentence = f"{lead(width)}, within seed noise {seeds}; {needed}."
    return Significance("within_noise", gap, width, more, sentence)


def mean_text(group: Group) -> str:
    """Format the mean of finite values, with half of its 95 % interval unless it is one seed."""
    noise = pooled_noise([group.values])
    if noise is None:
        return f"{group.mean:#.4g}"
    width = quantile(_LEVEL, noise.freedom) * noise.deviation / math.sqrt(len(group.values))
    return _with_width(group.mean, width)


def mean_note(group: Group, metric: str) -> str | None:
    """Return a group's mean with half of its 95 % interval; None for a single seed."""
    if len(group.values) < 2:
        return None
    if group.diverged:
        return f"{group.name}: {group.diverged} of {len(group.values)} seeds diverged."
    return f"{group.name}: {metric} {mean_text(group)} (mean of {len(group.values)} seeds)."


def within_noise(gap: float, noise: Noise, counts: tuple[int, int]) -> bool:
    """Return whether two means over ``counts`` seeds may differ by ``gap`` by chance alone."""
    return abs(gap) <= band(noise, counts)


def band(noise: Noise, counts: tuple[int, int]) -> float:
    """Return half of the 95 % interval of the difference between means over ``counts`` seeds."""
    spread = noise.deviation * math.sqrt(sum(1 / count for count in counts))
    return quantile(_LEVEL, noise.freedom) * spread


def _half_width(base: Group, other: Group, noise: Noise | None) -> tuple[float, float] | None:
    """Return half of the 95 % interval, and the standard deviation between seeds; None if the noise
    is unknown.
    """
    counts = len(base.values), len(other.values)
    if noise is not None:
        return band(noise, counts), noise.deviation
    if min(counts) < 2:
        own = pooled_noise([base.values, other.values])
        return None if own is None else (band(own, counts), own.deviation)
    squared = []
    for group in (base, other):
        deviation = pooled_noise([group.values])
        assert deviation is not None
        squared.append(deviation.deviation**2)
    errors = [square / count for square, count in zip(squared, counts, strict=True)]
    if sum(errors) == 0:
        return 0.0, 0.0
    # The Welch-Satterthwaite degrees of freedom.
    shares = [error / sum(errors) for error in errors]  # Squares of tiny errors would be 0.
    parts = (share**2 / (count - 1) for share, count in zip(shares, counts, strict=True))
    freedom = max(1.0, 1 / math.fsum(parts))
    return quantile(_LEVEL, freedom) * math.sqrt(sum(errors)), math.sqrt(sum(squared) / 2)


def _more_seeds(gap: float, deviation: float, there: int) -> int | None:
    """Return how many further seeds of each group find a true difference of ``gap`` in 80 % of
    cases; None if more than ``_MOST_SEEDS`` are needed in all.
    """
    for count in range(max(there, 1) + 1, _MOST_SEEDS + 1):
        freedom = 2 * (count - 1)
        needed = quantile(_LEVEL, freedom) + quantile(_POWER, freedom)
        if gap >= needed * deviation * math.sqrt(2 / count):
            return count - there
    return None


def _lead(
    base: str,
    other: str,
    gap: float,
    goal: Goal | None,
    metric: str,
    width: float | None = None,
    *,
    sure: bool = False,
) -> str:
    if gap == 0:
        return f"{other} and {base} have the same {metric}"
    by = f"{abs(gap):.2g}" if width is None else _with_width(abs(gap), width)
    if float(by.partition(" ")[0]) == 0 and not sure:
        return f"{other} and {base} show no difference in {metric} ({by})"
    if goal is None:
        word = f"{'higher' if gap > 0 else 'lower'} in {metric}"
    else:
        word = "better" if (gap < 0) == (goal == "minimize") else "worse"
    return f"{other} {'is' if sure else 'looks'} {word} than {base} by {by}"


def _with_width(value: float, width: float) -> str:
    """Return ``0.040 ± 0.012``: the width with two digits, the value with as many decimals."""
    if width == 0:
        return f"{value:.4g} ± 0"
    decimals = 1 - math.floor(math.log10(width))
    if not 0 <= decimals <= 6:
        return f"{value:.3g} ± {width:.2g}"
    return f"{value:.{decimals}f} ± {width:.{decimals}f}"


def _seeds(counts: Sequence[int]) -> str:
    first, second = counts
    if first != second:
        return f"means of {second} and {first} seeds"
    return "1 seed each" if first == 1 else f"means of {first} seeds each"


def _diverged(base: Group, other: Group, metric: str) -> str:
    parts = []
    for group in (other, base):
        if group.diverged:
            number = f"{group.diverged} of {len(group.values)} seeds of {group.name}"
            if len(group.values) == 1:
                number = group.name
            finite = all(math.isfinite(value) for value in group.values)
            what = f"beyond {BEYOND:g}" if finite else "not finite"
            parts.append(f"{number} diverged ({metric} is {what})")
    return f"{' and '.join(parts)}, so {other.name} and {base.name} have no difference."


_PARTS = 100
_FAR = 12.0  # Standard deviations beyond which a distribution has nothing.


def cumulative(t: float, freedom: float) -> float:
    """Return the probability of a value of at most ``t``, to 1e-6 where that is at most 0.975.

    ``freedom``: degrees of freedom, at least 1; it need not be a whole number.
    """
    # With t = sqrt(freedom) * tan(angle) the density is a power of the cosine: by Simpson's rule.
    angle = min(math.atan(abs(t) / math.sqrt(freedom)), _FAR / math.sqrt(freedom))
    heights = [math.cos(angle * part / _PARTS) ** (freedom - 1) for part in range(_PARTS + 1)]
    area = heights[0] + 4 * sum(heights[1::2]) + 2 * sum(heights[2:-1:2]) + heights[-1]
    scale = math.exp(math.lgamma((freedom + 1) / 2) - math.lgamma(freedom / 2))
    return 0.5 + math.copysign(area * angle / _PARTS / 3 * scale / math.sqrt(math.pi), t)


@lru_cache(maxsize=4096)
def quantile(probability: float, freedom: float) -> float:
    """Return the value that is not exceeded with ``probability``, 0.5 to 1 exclusive.

    Raises:
        ValueError: an argument is out of its range.
    """
    if not 0.5 <= probability < 1 or not freedom >= 1:
        raise ValueError(f"no quantile at {probability} with {freedom} degrees of freedom")
    low, high = 0.0, 1.0
    while cumulative(high, freedom) < probability:
        low, high = high, 2 * high
    while high - low > 1e-9 * high:
        middle = (low + high) / 2
        low, high = (middle, high) if cumulative(middle, freedom) < probability else (low, middle)
    return (low + high) / 2
