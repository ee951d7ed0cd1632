"""Export a run's metrics: a row per step, a column per metric, exact; Parquet, CSV or
JSON lines.
"""

from __future__ import annotations

import csv
import io
import math
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import chain
from typing import Any

import numpy as np
import orjson
from numpy.typing import NDArray

from lehr.errors import UserError
from lehr.store.streams.series import SeriesReader
from lehr_trainer.extras import install

_ROWS_A_PIECE = 10_000
MOST_CELLS = 200_000_000
"""Of a Parquet file, whose columns hold a place for each step: 2 GB while it is written."""
_CELLS_A_GROUP = 10_000_000


@dataclass(frozen=True)
class ExportColumn:
    """The values of a metric, only where the run logged it: a NaN here was logged."""

    name: str
    rows: NDArray[np.int64]  # Where ``values`` are in the table; ascending.
    values: NDArray[np.float64]


@dataclass(frozen=True)
class ExportTable:
    """A row for each step. Its size is that of the points, however few a step has."""

    steps: NDArray[np.int64]
    columns: list[ExportColumn]


def table(series: SeriesReader, run_id: str) -> ExportTable:
    """Build the table of every point that is not superseded by a later attempt.

    ``tokens`` counts the tokens trained on so far, if they are known. ``time`` counts the seconds
    since the first point. A metric of one of these names, or ``step``, gets ``program/`` before it.
    """
    curves, axes = series.curves(run_id)
    if (tokens := axes.get("tokens")) and np.array_equal(tokens.values, tokens.steps):
        del axes["tokens"]  # A program that declares none counts each step as one.
    empty = np.empty(0, np.int64)
    steps = np.unique(np.concatenate([empty, *(curve.steps for curve in curves.values())]))
    found = []
    own = ((f"program/{n}" if n in {"step", *axes} else n, curve) for n, curve in curves.items())
    for name, curve in (*axes.items(), *own):
        there = np.isin(curve.steps, steps) & (np.isfinite(curve.values) | (name not in axes))
        at = curve.steps[there]
        found.append(ExportColumn(name, np.searchsorted(steps, at), curve.values[there]))
    return ExportTable(steps, found)


def json_lines(made: ExportTable) -> Iterator[bytes]:
    """Write an object per line, without values that were not logged; NaN and infinity by name."""
    for rows in _rows(made):
        yield b"".join(orjson.dumps(row) + b"\n" for row in rows)


def csv_lines(made: ExportTable) -> Iterator[bytes]:
    """Write the names of the columns and a line per step; a value that was not logged is empty."""
    names = ["step", *(column.name for column in made.columns)]
    for rows in chain([[dict(zip(names, names, strict=True))]], _rows(made)):
        text = io.StringIO()
        csv.DictWriter(text, names, lineterminator="\n").writerows(rows)
        yield text.getvalue().encode()


def _rows(made: ExportTable) -> Iterator[list[dict[str, Any]]]:
    names = [column.name for column in made.columns]
    places = [np.full(len(one.rows), k, np.int32) for k, one in enumerate(made.columns)]
    rows = np.concatenate([np.empty(0, np.int64), *(one.rows for one in made.columns)])
    by_row = np.argsort(rows, kind="stable")  # Stable: in a row the columns keep their order.
    rows = rows[by_row]
    place = np.concatenate([np.empty(0, np.int32), *places])[by_row]
    value = np.concatenate([np.empty(0), *(one.values for one in made.columns)])[by_row]
    for first in range(0, len(made.steps), _ROWS_A_PIECE):
        steps = made.steps[first : first + _ROWS_A_PIECE].tolist()
        logged: list[dict[str, Any]] = [{"step": step} for step in steps]
        low, high = np.searchsorted(rows, [first, first + len(steps)])
        points = zip(
            (rows[low:high] - first).tolist(),
            place[low:high].tolist(),
            value[low:high].tolist(),
            strict=True,
        )
        for row, column, number in points:
            logged[row][names[column]] = _named(number)
        yield logged


def parquet(made: ExportTable, run_id: str) -> bytes:
    """Write a table in which a value that was not logged is null, and NaN is NaN.

    Raises:
        UserError: it has more than ``MOST_CELLS``, or pyarrow is missing.
    """
    try:
        import pyarrow as pa
        import pyarrow.parquet as pq
    except ImportError as error:
        raise UserError(
            "the server cannot write Parquet: pyarrow is not installed there.",
            hint=f"Ask for csv or jsonl, or install it: {install('lehr[server]')}",
        ) from error
    width = 1 + len(made.columns)
    if len(made.steps) * width > MOST_CELLS:
        raise UserError(
            f"the table is too large for Parquet: {len(made.steps):,} steps of {width:,} columns; "
            f"at most {MOST_CELLS:,} values.",
            hint="Ask for csv or jsonl, which hold only what was logged.",
        )
    fields = [pa.field("step", pa.int64())]
    fields += [pa.field(column.name, pa.float64()) for column in made.columns]
    schema = pa.schema(fields, metadata={"lehr.run": run_id})
    height = max(1, _CELLS_A_GROUP // width)
    sink = io.BytesIO()
    with pq.ParquetWriter(sink, schema) as writer:
        for first in range(0, max(1, len(made.steps)), height):
            steps = made.steps[first : first + height]
            arrays = [pa.array(steps, pa.int64())]
            arrays += [_with_nulls(column, first, len(steps)) for column in made.columns]
            writer.write_table(pa.Table.from_arrays(arrays, schema=schema))
    return sink.getvalue()


def _with_nulls(column: ExportColumn, first: int, count: int) -> Any:
    import pyarrow as pa

    low, high = np.searchsorted(column.rows, [first, first + count])
    rows = column.rows[low:high] - first
    values = np.zeros(count)
    values[rows] = column.values[low:high]
    missing = np.ones(count, np.bool_)
    missing[rows] = False
    return pa.array(values, pa.float64(), mask=missing)


def _named(value: float) -> float | str:
    if math.isfinite(value):
        return value
    return "NaN" if math.isnan(value) else "Infinity" if value > 0 else "-Infinity"
