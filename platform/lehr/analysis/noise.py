"""The noise between seeds: how far runs that differ only in their seed lie apart."""

from __future__ import annotations

import math
from collections.abc import Collection, Iterable


def pooled_deviation(groups: Iterable[Collection[float]]) -> float | None:
    """Sample standard deviation within the groups; None where no group has two values."""
    squares, freedom = 0.0, 0
    for group in groups:
        mean = math.fsum(group) / max(len(group), 1)
        squares += math.fsum((value - mean) ** 2 for value in group)
        freedom += max(len(group) - 1, 0)
    return math.sqrt(squares / freedom) if freedom else None
