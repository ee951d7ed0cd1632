"""Each value of the store's streams has its schema, field by field."""

from __future__ import annotations

from dataclasses import asdict, replace

import pytest

from lehr.app.presenters import streams
from lehr.store.streams.values import LatestValue, LogFile, LogText, MetricSummary, SeriesData

SERIES = SeriesData(
    run_id="k3f9x2ab",
    name="train/loss",
    x_axis="tokens",
    exact=False,
    total_points=9,
    step=[4, 9],
    x=[40.0, 90.0],
    y=[3.5, 3.0],
    low=[3.4, 2.9],
    high=[3.9, 3.2],
    nonfinite=[7],
)
VALUES = [
    (streams.metric_info, MetricSummary("train/loss", 9, 3.0, 9, 2.9, None)),
    (streams.series_view, SERIES),
    (streams.series_view, replace(SERIES, superseded=[SERIES, replace(SERIES, step=[5, 8])])),
    (streams.log_stream, LogFile("rank-0.log", 2, 100, cut=True)),
    (streams.log_chunk, LogText("rank-0.log", 2, 10, 20, 100, "text", ended=True)),
]


def shown(value):
    """The fields of a value, and the goal of a metric."""
    made = asdict(value)
    if isinstance(value, MetricSummary | SeriesData):
        made["goal"] = "minimize"
    if isinstance(value, SeriesData):
        made["superseded"] = [shown(one) for one in value.superseded]
    return made


@pytest.mark.parametrize(("present", "value"), VALUES)
def test_schema_has_the_fields_of_the_value(present, value):
    view = present(value)
    assert view.model_dump() == shown(value)
    assert set(type(view).model_fields) == shown(value).keys()
    assert type(view).model_validate(view.model_dump()) == view


def test_latest_values_are_presented_by_metric():
    latest = streams.latest_values({"train/loss": LatestValue(3.0, 9), "mfu": LatestValue(0.4, 8)})
    assert {name: (one.value, one.step) for name, one in latest.items()} == {
        "train/loss": (3.0, 9),
        "mfu": (0.4, 8),
    }
