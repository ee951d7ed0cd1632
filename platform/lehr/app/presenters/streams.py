"""Metrics, series and logs: the store's values as the API's schemas."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from functools import lru_cache
from typing import TYPE_CHECKING, Any

from pydantic import TypeAdapter

from lehr.base.names import goal_of
from lehr.schemas.runs import Latest
from lehr.schemas.streams import LogChunk, LogStream, MetricInfo, Series
from lehr_trainer.configs.train import ModelConfig
from lehr_trainer.planning import counts

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


_model: TypeAdapter[Any] = TypeAdapter(ModelConfig)


def flops_per_token(train: Mapping[str, Any]) -> float | None:
    """Return them from a run's train config; None when its sequence length changes during the
    run, or when its model is not Lehr's.
    """
    batch = train["batch"]
    if (train.get("parts") or {}).get("model"):
        return None
    if batch.get("stages"):
        return None
    return _flops(json.dumps(train["model"], sort_keys=True), batch["sequence_length"])


@lru_cache(maxsize=1024)
def _flops(model: str, sequence_length: int) -> float:
    return counts.flops_per_token(_model.validate_json(model), sequence_length)
