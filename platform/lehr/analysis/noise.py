"""The noise between seeds: how far runs that differ only in their seed lie apart."""

from __future__ import annotations

import math
from collections.abc import Collection, Iterable
from dataclasses import dataclass

BEYOND = 1e50
"""A value this large, up or down, counts as diverged: fp32 does not hold it, and squares of squares
of smaller ones cannot overflow."""


def is_value(value: float) -> bool:
    """Return whether a value can be compared; else its run diverged."""
    return abs(value) < BEYOND


@dataclass(frozen=True)
class Noise:
    """An estimate of the noise between seeds."""

    deviation: float  # Sample standard deviation between seeds, pooled over the groups.
    freedom: int  # Its degrees of freedom: seeds less groups.
    groups: int  # Number of groups with several seeds.
    sweep: str = ""  # Its name, where it is not of the compared runs alone.


def pooled_noise(groups: Iterable[Collection[float]]) -> Noise | None:
    """Return the noise within the groups, of values that can be compared; None where no group has
    two values.
    """
    squares, freedom, several = 0.0, 0, 0
    for group in groups:
        mean = math.fsum(group) / max(len(group), 1)
        squares += math.fsum((value - mean) ** 2 for value in group)
        freedom += max(len(group) - 1, 0)
        several += len(group) > 1
    return Noise(math.sqrt(squares / freedom), freedom, several) if freedom else None
