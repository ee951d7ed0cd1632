"""Metrics, series and logs: the store's values as the API's schemas."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

from lehr.schemas.runs import Latest
from lehr.schemas.streams import LogChunk, LogStream, MetricInfo, Series

if TYPE_CHECKING:
    from lehr.store.streams.values import LatestValue, LogFile, LogText, MetricSummary, SeriesData


def metric_info(metric: MetricSummary) -> MetricInfo:
    return MetricInfo(**vars(metric))


def latest_values(latest: Mapping[str, LatestValue]) -> dict[str, Latest]:
    """By metric."""
    return {name: Latest(**vars(value)) for name, value in latest.items()}


def series_view(series: SeriesData) -> Series:
    # Made of the store's own lists: nothing to validate, and a million points would take a second.
    superseded = [series_view(one) for one in series.superseded]
    return Series.model_construct(**{**vars(series), "superseded": superseded})


def log_stream(log: LogFile) -> LogStream:
    return LogStream(**vars(log))


def log_chunk(part: LogText) -> LogChunk:
    return LogChunk(**vars(part))
