"""Data of runs: metrics, logs, events, samples."""

from __future__ import annotations

from typing import Any, Literal

from lehr.metric_goal import Goal
from lehr.schemas.base import Measured, View


class MetricInfo(View):
    name: str
    goal: Goal | None = None
    """Whether lower or higher values are better; null where the name does not show it."""
    points: int
    last: Measured
    last_step: int
    minimum: Measured | None = None
    maximum: Measured | None = None


class MetricsOfRun(View):
    run_id: str
    metrics: list[MetricInfo]


class Series(View):
    """One metric of one run, reduced to at most ``points`` buckets unless ``exact``.

    ``x`` is by ``x_axis``: step, tokens, or seconds since the run's first point. In a reduced
    series each bucket has its last point in ``x``/``y`` and its range in ``low``/``high``.
    """

    run_id: str
    name: str
    goal: Goal | None = None
    """As of ``MetricInfo``."""
    x_axis: Literal["step", "tokens", "time"] = "step"
    exact: bool
    total_points: int
    step: list[int]
    x: list[Measured]
    y: list[Measured]
    low: list[Measured] | None = None
    high: list[Measured] | None = None
    nonfinite: list[int] = []
    """Steps whose value is NaN or infinite (the first 1,000), also where a bucket hides them."""
    superseded: list[Series] = []
    """Points of earlier attempts past the step where a later one resumed, if requested."""


class LogStream(View):
    name: str
    attempt: int
    size_bytes: int
    cut: bool = False


class LogChunk(View):
    name: str
    attempt: int
    offset: int
    next_offset: int
    size_bytes: int
    text: str
    ended: bool
    """No more will come: the attempt is closed."""


class LogHit(View):
    """A line of a log that contains the searched text."""

    offset: int
    """Byte offset of the line: read on from there."""
    text: str


class LogHits(View):
    name: str
    attempt: int
    lines: list[LogHit]
    next_offset: int | None = None
    """Offset to continue the search; null once the log was searched to its end."""


class EventView(View):
    """A transition, a request or a record of the trainer, in order of time."""

    at: float
    kind: str
    """transition, request, started, resumed, checkpoint, checkpoint_removed, evaluation, warning,
    notice, stopping, finished."""
    message: str
    attempt: int
    step: int | None = None
    data: dict[str, Any] = {}


class SampleView(View):
    step: int
    attempt: int
    prompt: str
    text: str
    at: float
