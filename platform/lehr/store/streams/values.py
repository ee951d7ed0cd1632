"""Values that the readers of streams return. The presenters make the API's schemas of them."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Literal

SeriesAxis = Literal["step", "tokens", "time"]


@dataclass(frozen=True)
class MetricSummary:
    """A metric of a run: its newest value and its range, without NaN."""

    name: str
    points: int
    last: float
    last_step: int
    minimum: float | None
    maximum: float | None


@dataclass(frozen=True)
class LatestValue:
    """The newest value of a metric."""

    value: float
    step: int


@dataclass(frozen=True)
class SeriesData:
    """One metric of one run, reduced to buckets unless ``exact``.

    The unit of ``x`` is ``x_axis``: step, tokens, or seconds since the run's first point. In a
    reduced series ``x``/``y`` hold each bucket's last point and ``low``/``high`` its range.
    """

    run_id: str
    name: str
    x_axis: SeriesAxis
    exact: bool
    total_points: int
    step: list[int]
    x: list[float]
    y: list[float]
    low: list[float] | None
    high: list[float] | None
    nonfinite: list[int]
    """Steps whose value is NaN or infinite (the first 1,000), also within buckets."""
    superseded: list[SeriesData] = field(default_factory=list)
    """Points of earlier attempts after the step from which a later one resumed, if requested."""


@dataclass(frozen=True)
class LogFile:
    """A log of an attempt."""

    name: str
    attempt: int
    size_bytes: int
    cut: bool
    """Whether only its beginning is stored."""


@dataclass(frozen=True)
class LogText:
    """A part of a log, as text."""

    name: str
    attempt: int
    offset: int
    next_offset: int
    size_bytes: int
    text: str
    ended: bool
    """Whether the text is complete: the attempt is closed."""
