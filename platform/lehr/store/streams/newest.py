"""The newest point of a metric of an attempt, with what is counted of all its points."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any


@dataclass(slots=True)
class NewestPoint:
    """A row of ``latest`` while new points update it."""

    step: int
    value: float | None
    points: int
    low: float | None
    high: float | None
    loose: int


def forward(known: NewestPoint | None, values: dict[int, float]) -> NewestPoint:
    """Return the row updated by these points, all of which come after it."""
    numbers: Iterable[float] = values.values()
    total = sum(numbers)
    if total != total:  # noqa: PLR0124 - true for NaN, also from opposite infinities
        numbers = [value for value in numbers if value == value]  # noqa: PLR0124
    low: float | None = min(numbers, default=None)
    high: float | None = max(numbers, default=None)
    step, count = max(values), len(values)
    if known is None:
        return NewestPoint(step, values[step], count, low, high, count)
    return NewestPoint(
        step,
        values[step],
        known.points + count,
        min(_given(known.low, low), default=None),
        max(_given(known.high, high), default=None),
        known.loose + count,
    )


def _given(*numbers: float | None) -> Iterable[float]:
    return [number for number in numbers if number is not None]


def columns(row: NewestPoint) -> tuple[Any, ...]:
    return (row.step, row.value, row.points, row.low, row.high, row.loose)
