"""Export a run's metrics: a row per step, a column per metric, exact; Parquet or JSON lines."""

from __future__ import annotations

import io
import math
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
import orjson
from numpy.typing import NDArray

from lehr.errors import UserError
from lehr.store.streams.series import SeriesReader

_AXES = ("tokens", "time")
_ROWS_A_PIECE = 10_000


@dataclass(frozen=True)
class ExportColumn:
    name: str
    values: NDArray[np.float64]
    there: NDArray[np.bool_]
    """False where the run logged nothing; a logged NaN is a value, and True."""


@dataclass(frozen=True)
class ExportTable:
    steps: NDArray[np.int64]
    columns: list[ExportColumn]


def table(series: SeriesReader, run_id: str) -> ExportTable:
    """Build the table of every point that is not superseded by a later attempt.

    ``tokens`` counts the tokens trained on so far, ``time`` the seconds since the first point.
    """
    known = sorted(series.metrics(run_id), key=lambda metric: -metric.points)
    curves = {metric.name: series.read(run_id, metric.name, exact=True) for metric in known}
    steps = np.unique(
        np.concatenate([np.empty(0, np.int64), *(np.array(c.step, int) for c in curves.values())])
    )
    found = []
    for axis in _AXES:
        column = _empty(axis, len(steps))
        for name, curve in curves.items():
            at = np.searchsorted(steps, np.array(curve.step, int))
            # Most metrics share their steps, so the axes of the same steps are read only once.
            if not column.there[at].all():
                data = series.read(run_id, name, exact=True, x_axis=axis)  # type: ignore[arg-type]
                _fill(column, steps, data.step, data.x)
        found.append(column)
    for name in sorted(curves):
        column = _empty(name, len(steps))
        _fill(column, steps, curves[name].step, curves[name].y)
        found.append(column)
    return ExportTable(steps, found)


def json_lines(made: ExportTable) -> Iterator[bytes]:
    """Write an object per line, without values that were not logged; NaN and infinity by name."""
    values = [column.values.tolist() for column in made.columns]
    there = [column.there.tolist() for column in made.columns]
    names = [column.name for column in made.columns]
    rows: list[bytes] = []
    for row, step in enumerate(made.steps.tolist()):
        logged: dict[str, Any] = {"step": step}
        for name, numbers, known in zip(names, values, there, strict=True):
            if known[row]:
                logged[name] = _named(numbers[row])
        rows.append(orjson.dumps(logged) + b"\n")
        if len(rows) == _ROWS_A_PIECE:
            yield b"".join(rows)
            rows = []
    if rows:
        yield b"".join(rows)


def parquet(made: ExportTable, run_id: str) -> bytes:
    """Write one row group; a value that was not logged is null, NaN is NaN."""
    try:
        import pyarrow as pa
        import pyarrow.parquet as pq
    except ImportError as error:
        raise UserError(
            "the server cannot write Parquet: pyarrow is not installed there.",
            hint="Ask for jsonl, or install it: pip install 'lehr[server]'",
        ) from error
    columns = {"step": pa.array(made.steps, pa.int64())}
    for column in made.columns:
        columns[column.name] = pa.array(column.values, pa.float64(), mask=~column.there)
    sink = io.BytesIO()
    pq.write_table(pa.table(columns).replace_schema_metadata({"lehr.run": run_id}), sink)
    return sink.getvalue()


def _empty(name: str, count: int) -> ExportColumn:
    return ExportColumn(name, np.full(count, np.nan), np.zeros(count, np.bool_))


def _fill(
    column: ExportColumn, steps: NDArray[np.int64], at: list[int], values: list[float]
) -> None:
    rows = np.searchsorted(steps, np.array(at, int))
    column.values[rows] = values
    column.there[rows] = True


def _named(value: float) -> float | str:
    if math.isfinite(value):
        return value
    return "NaN" if math.isnan(value) else "Infinity" if value > 0 else "-Infinity"
