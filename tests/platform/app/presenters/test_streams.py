"""Each value of the store's streams has its schema, field by field."""

from __future__ import annotations

import math
from dataclasses import asdict, replace
from pathlib import Path

import pytest

from lehr.app.presenters import series, streams
from lehr.app.presenters.streams import checkpoints, events
from lehr.store.streams.events import Events
from lehr.store.streams.logs import LogFile, LogText
from lehr.store.streams.series import MetricSummary
from lehr.store.streams.series_query import SeriesData
from lehr_testing.api import RUN_SPEC, api_client
from lehr_testing.api import begin as begin_attempt
from lehr_testing.stores import begin, fresh_store, ingest, line, metrics, next_attempt, run_spec

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
    (series.series_view, SERIES),
    (series.series_view, replace(SERIES, superseded=[SERIES, replace(SERIES, step=[5, 8])])),
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
        made |= {"members": 1, "counts": None, "dropouts": "", "far": [], "speed": False}
    return made


@pytest.mark.parametrize(("present", "value"), VALUES)
def test_schema_has_the_fields_of_the_value(present, value):
    view = present(value)
    assert view.model_dump() == shown(value)
    assert set(type(view).model_fields) == shown(value).keys()
    assert type(view).model_validate(view.model_dump()) == view


@pytest.mark.parametrize(
    ("logged", "shown"),
    [
        (2.3456788063049316, 2.345679),
        (-31611.47456003999, -31611.47),
        (1.2345678912e-30, 1.234568e-30),
        (61_300_000_123.5, 61_300_000_000.0),
        (0.0, 0.0),
        (5e-324, 5e-324),
        (math.inf, math.inf),
    ],
)
def test_values_of_a_reduced_series_have_seven_digits_and_those_of_an_exact_one_all(logged, shown):
    read = replace(SERIES, y=[logged, math.nan], low=[logged], high=[logged])
    view = series.series_view(read)
    assert view.y[0] == view.low[0] == view.high[0] == shown
    assert math.isnan(view.y[1])
    assert series.series_view(replace(read, exact=True)).y[0] == logged


def test_a_short_curve_is_rounded_on_request_and_a_trend_to_what_can_be_seen() -> None:
    short = replace(SERIES, exact=True, y=[2.3456788, 123456.0, math.nan])
    assert series.series_view(short, 4).y[:2] == [2.346, 123500.0]
    assert series.drawn([10.97742, 5.720695, math.inf]) == [11.0, 5.7, math.inf]
    assert series.drawn([123456.0, 999999.0, 1.0]) == [120000.0, 1000000.0, 0.0]
    assert series.drawn([2.0, 1.0, 1.014]) == [2.0, 1.0, 1.01]
    assert series.drawn([2.5, 2.5]) == [2.5, 2.5]
    assert series.drawn([]) == []


def test_resumption_names_the_versions_that_changed_since_the_checkpoint(tmp_path: Path) -> None:
    with fresh_store(tmp_path / "home") as store:
        run = store.runs.create(run_spec())
        attempt = begin(store, run.id)
        same = {"step": 4, "checkpoint": "attempt-1/c"}
        other = {**same, "step": 8, "changed": ["torch 2.12 -> 2.13", "numpy 1 -> 2"]}
        ingest(store, attempt.id, line("resumed", **same), line("resumed", **other))
        messages = [event.message for event in events(store, run)[0] if event.kind == "resumed"]
    assert messages == [
        "resumes from step 4 (attempt-1/c)",
        "resumes from step 8 (attempt-1/c); changed since then: torch 2.12 -> 2.13, numpy 1 -> 2",
    ]


def test_checkpoint_of_a_program_has_the_loss_that_it_logged_at_that_step(tmp_path: Path) -> None:
    program = {"trainer": {"script": "train.py", "steps": 9}, "train": None}
    path = "attempt-{}/checkpoints/step-{:08d}".format
    with fresh_store(tmp_path / "home") as store:
        run = store.runs.create(run_spec(**program))
        first = begin(store, run.id)
        again = line("resumed", step=4, checkpoint=path(1, 4))
        for number, steps in ((1, (2, 4, 6)), (2, (6, 8))):
            attempt = first if number == 1 else next_attempt(store, run.id)
            store.attempts.update(attempt.id, resume_from=path(1, 4) if number > 1 else None)
            saved = {"size_bytes": 1, "digest": "d"}
            points = [line("checkpoint", step=n, path=path(number, n), **saved) for n in steps]
            logged = [metrics(n, val_loss=n / number) for n in steps if n < 8]
            ingest(store, attempt.id, line("started"), *[again][: number - 1], *logged, *points)
            store.event_applier.apply(attempt.id)
        found = [(c.attempt, c.step, c.val_loss, c.best) for c in checkpoints(store, run)]
    assert sorted(found) == [
        (1, 2, 2.0, True),
        (1, 4, 4.0, False),
        (1, 6, None, False),  # What attempt 2 logged at step 6 is of other weights.
        (2, 6, 3.0, False),
        (2, 8, None, False),
    ]


def test_records_beyond_the_limit_are_left_out_oldest_first(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with api_client(tmp_path) as (api, client):
        run = client.post("/api/v1/runs", json={"spec": RUN_SPEC}).json()["id"]
        attempt = begin_attempt(api.store, run)
        written = [line("sample", step=n, prompt="p", text="x" * 1_000) for n in range(20)]
        warned = [line("warning", code="odd", message="y" * 1_000, step=n) for n in range(20)]
        ingest(api.store, attempt, *written, *warned)
        for path, steps in (("samples", "step"), ("events", "step")):
            url = f"/api/v1/runs/{run}/{path}"
            monkeypatch.setattr(Events.newest, "__kwdefaults__", {"attempt": None, "size": 1 << 23})
            whole = client.get(url)
            assert "lehr-left-out" not in whole.headers
            monkeypatch.setattr(Events.newest, "__kwdefaults__", {"attempt": None, "size": 10_000})
            part = client.get(url)
            assert part.headers["lehr-left-out"] == "older"
            found = [one[steps] for one in part.json() if one[steps] is not None]
            assert found == list(range(20))[-len(found) :]
            assert 7 <= len(found) <= 9
            assert [one[steps] for one in whole.json() if one[steps] is not None] == list(range(20))
