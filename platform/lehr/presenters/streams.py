"""Metrics, series and logs: the store's values as the API's schemas."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from lehr.metric_goal import goal_of
from lehr.schemas.runs import Latest
from lehr.schemas.streams import LogChunk, LogStream, MetricInfo, Series

if TYPE_CHECKING:
    from lehr.store import Gap
    from lehr.store.streams.replication import StreamInfo
    from lehr.store.streams.values import LatestValue, LogFile, LogText, MetricSummary, SeriesData


def metric_info(metric: MetricSummary) -> MetricInfo:
    return MetricInfo(**vars(metric), goal=goal_of(metric.name))


def latest_values(latest: Mapping[str, LatestValue]) -> dict[str, Latest]:
    """By metric."""
    return {name: Latest(**vars(value)) for name, value in latest.items()}


def series_view(series: SeriesData) -> Series:
    # Made of the store's own lists: nothing to validate, and a million points would take a second.
    superseded = [series_view(one) for one in series.superseded]
    goal = goal_of(series.name)
    return Series.model_construct(**{**vars(series), "goal": goal, "superseded": superseded})


def log_stream(log: LogFile) -> LogStream:
    return LogStream(**vars(log))


def log_chunk(part: LogText) -> LogChunk:
    return LogChunk(**vars(part))


def losses(number: int, gaps: Sequence[Gap], streams: Sequence[StreamInfo]) -> list[str]:
    """Return a sentence for each gap in an attempt's streams, and for lines that were skipped."""
    found = [f"Attempt {number}: {gap.text}." for gap in gaps]
    for one in streams:
        if one.malformed:
            lines = "1 line" if one.malformed == 1 else f"{one.malformed:,} lines"
            found.append(f"Attempt {number}: {lines} of {one.name} could not be read: skipped.")
    return found
