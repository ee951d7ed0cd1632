"""The export of a run's metrics: every point once, in a size that follows the points."""

from __future__ import annotations

import io
import json
import math

import numpy as np
import pyarrow.parquet as pq
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from lehr.store import Store
from lehr.store.streams import export
from lehr.store.streams.export import ExportColumn, ExportTable
from lehr_testing.stores import ingest, line, metrics, new_attempt, next_attempt

NUMBERS = st.floats(allow_nan=True, allow_infinity=True)


def lines(made: ExportTable) -> list[dict[str, object]]:
    return [json.loads(one) for one in b"".join(export.json_lines(made)).splitlines()]


def test_each_point_is_in_the_row_of_its_step(store: Store) -> None:
    attempt = new_attempt(store)
    ingest(
        store,
        attempt.id,
        metrics(1, time=50.0, tokens=10, train_loss=3.0),
        metrics(2, time=50.5, tokens=20, train_loss="NaN"),
        line("evaluation", 52.0, step=2, tokens=20, values={"val/loss": 2.5}),
        line("evaluation", 60.0, step=9, tokens=90, values={"val/loss": "Infinity"}),
    )
    made = export.table(store.series, attempt.run_id)
    assert lines(made) == [
        {"step": 1, "tokens": 10.0, "time": 0.0, "train/loss": 3.0},
        {"step": 2, "tokens": 20.0, "time": 0.5, "train/loss": "NaN", "val/loss": 2.5},
        {"step": 9, "tokens": 90.0, "time": 10.0, "val/loss": "Infinity"},
    ]
    assert list(lines(made)[1]) == ["step", "tokens", "time", "train/loss", "val/loss"]
    assert b"".join(export.csv_lines(made)).decode().splitlines() == [
        "step,tokens,time,train/loss,val/loss",
        "1,10.0,0.0,3.0,",
        "2,20.0,0.5,NaN,2.5",
        "9,90.0,10.0,,Infinity",
    ]
    read = pq.read_table(io.BytesIO(export.parquet(made, attempt.run_id)))
    assert read.schema.metadata[b"lehr.run"] == attempt.run_id.encode()
    assert read["step"].to_pylist() == [1, 2, 9]
    assert read["val/loss"].to_pylist() == [None, 2.5, math.inf]
    loss = read["train/loss"].to_pylist()
    assert (loss[0], math.isnan(loss[1]), loss[2]) == (3.0, True, None)


def test_metric_with_the_name_of_an_axis_has_a_column_of_its_own(store: Store) -> None:
    attempt = new_attempt(store)
    values = {"time": 31.7, "step": 4.0}
    ingest(store, attempt.id, line("metrics", 50.0, step=2, tokens=10, values=values))
    [row] = lines(export.table(store.series, attempt.run_id))
    own = {"program/step": 4.0, "program/time": 31.7}
    assert row == {"step": 2, "tokens": 10.0, "time": 0.0} | own


def test_superseded_points_are_left_out_on_every_axis(store: Store) -> None:
    first = new_attempt(store)
    ingest(
        store, first.id, *[metrics(n, time=float(n), tokens=n, train_loss=1.0) for n in (1, 2, 3)]
    )
    second = next_attempt(store, first.run_id)
    resumed = line("resumed", 10.0, step=2, checkpoint="attempt-1/checkpoints/step-00000002")
    after = [metrics(n, time=10.0 + n, tokens=n * 7, train_loss=2.0) for n in (3, 4)]
    ingest(store, second.id, resumed, *after)
    assert lines(export.table(store.series, first.run_id)) == [
        {"step": 1, "tokens": 1.0, "time": 0.0, "train/loss": 1.0},
        {"step": 2, "tokens": 2.0, "time": 1.0, "train/loss": 1.0},
        {"step": 3, "tokens": 21.0, "time": 12.0, "train/loss": 2.0},
        {"step": 4, "tokens": 28.0, "time": 13.0, "train/loss": 2.0},
    ]


def test_run_without_a_point_is_an_empty_table(store: Store) -> None:
    made = export.table(store.series, new_attempt(store).run_id)
    assert lines(made) == []
    assert pq.read_table(io.BytesIO(export.parquet(made, "r"))).num_rows == 0


COLUMNS = st.dictionaries(
    st.sampled_from(["a", "b", "c/d", "e"]),
    st.dictionaries(st.integers(0, 30), NUMBERS, min_size=1, max_size=20),
    max_size=4,
)


@given(columns=COLUMNS, piece=st.integers(1, 7), cells=st.integers(1, 60))
@settings(suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_pieces_and_row_groups_hold_the_same_points(monkeypatch, columns, piece, cells) -> None:
    monkeypatch.setattr(export, "_ROWS_A_PIECE", piece)
    monkeypatch.setattr(export, "_CELLS_A_GROUP", cells)
    steps = sorted({step for points in columns.values() for step in points})
    made = ExportTable(
        np.array(steps, np.int64),
        [
            ExportColumn(
                name,
                np.array([steps.index(step) for step in sorted(points)], np.int64),
                np.array([points[step] for step in sorted(points)]),
            )
            for name, points in columns.items()
        ],
    )
    found = lines(made)
    assert [one.pop("step") for one in found] == steps
    wanted = [
        {name: points[step] for name, points in columns.items() if step in points} for step in steps
    ]
    assert [{k: repr(float(v)) for k, v in one.items()} for one in found] == [
        {name: repr(value) for name, value in one.items()} for one in wanted
    ]
    read = pq.read_table(io.BytesIO(export.parquet(made, "r")))
    assert read["step"].to_pylist() == steps
    for name, points in columns.items():
        wanted_column = [points.get(step) for step in steps]
        assert list(map(repr, read[name].to_pylist())) == list(map(repr, wanted_column))
