"""The points of a metric: read and joined over attempts, written as rows and blocks.

Reading a row creates a Python object; reading a block of 8,192 points copies memory twice. Many
points at once go into a small block, few into rows of ``metrics``. When enough of both are loose
they are joined into one full block (compaction). Readers get the same points at each stage.
"""

from __future__ import annotations

import json
import sqlite3
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import groupby
from operator import itemgetter
from typing import Any

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]

NO_LIMIT = 2**63 - 1


@dataclass(frozen=True)
class Points:
    """The points of a series: steps ascend, each occurs once."""

    steps: Ints
    values: Floats

    def __len__(self) -> int:
        return len(self.steps)

    def where(self, mask: NDArray[np.bool_]) -> Points:
        return Points(self.steps[mask], self.values[mask])


@dataclass(frozen=True)
class AttemptStart:
    """The step after which an attempt with points goes on."""

    attempt: int
    step: int
    parent: int | None


@dataclass(frozen=True)
class Span:
    """An attempt's part of the run's curve: its points up to ``limit``."""

    attempt: int
    limit: int


EMPTY = Points(np.empty(0, np.int64), np.empty(0, np.float64))


def of(values: dict[int, float]) -> Points:
    """Make points of a map from step to value, in any order."""
    count = len(values)
    steps = np.fromiter(values.keys(), np.int64, count)
    numbers = np.fromiter(values.values(), np.float64, count)
    if count > 1 and (np.diff(steps) < 0).any():
        order = np.argsort(steps, kind="stable")
        steps, numbers = steps[order], numbers[order]
    return Points(steps, numbers)


Key = tuple[int, int, int]  # The key of a series in the index: run, metric, attempt.
_KEY = itemgetter(0, 1, 2)
_OF_KEYS = """
    run IN (SELECT value FROM json_each(:runs))
    AND metric IN (SELECT value FROM json_each(:metrics))
    AND (:attempt IS NULL OR attempt=:attempt)
"""
_BLOCKS = f"""
    SELECT run, metric, attempt, first, count, stride, steps, vals FROM blocks
    WHERE {_OF_KEYS} AND count<:below AND last>=:low AND first<=:high
    ORDER BY run, metric, attempt, first
"""  # noqa: S608 - constants only
_ROWS = f"""
    SELECT run, metric, attempt, step, value FROM metrics WHERE {_OF_KEYS}
    ORDER BY run, metric, attempt, step
"""  # noqa: S608 - constants only


def load(connection: sqlite3.Connection, run: int, metric: int, attempt: int) -> Points:
    """Load an attempt's points of a metric."""
    return load_many(connection, [run], [metric], attempt).get((run, metric, attempt), EMPTY)


def load_many(
    connection: sqlite3.Connection,
    runs: Collection[int],
    metrics: Collection[int],
    attempt: int | None = None,
    *,
    below: int = 1 << 62,
    within: tuple[int, int] | None = None,
) -> dict[Key, Points]:
    """Load the points of these metrics of these runs, of each attempt or of this one; with
    ``within``, those of these steps, maybe more. ``below``: of blocks with fewer points only.

    The statements are two for all of them: a thread waits for Python's lock at each.
    """
    low, high = within or (-NO_LIMIT, NO_LIMIT)
    given = {"runs": json.dumps([*runs]), "metrics": json.dumps([*metrics]), "attempt": attempt}
    found = connection.execute(_BLOCKS, {**given, "below": below, "low": low, "high": high})
    older = {key: _unpacked([row[3:] for row in its]) for key, its in groupby(found, _KEY)}
    newer = rows(connection, runs, metrics, attempt)
    return {key: merged(older.get(key, EMPTY), newer.get(key, EMPTY)) for key in {**older, **newer}}


def _unpacked(found: Sequence[tuple[Any, ...]]) -> Points:
    """Make points of rows of ``blocks``."""
    total = sum(count for _, count, _, _, _ in found)
    steps, values = np.empty(total, np.int64), np.empty(total, np.float64)
    at = 0
    for first, count, stride, step_bytes, value_bytes in found:
        if stride is None:
            steps[at : at + count] = np.frombuffer(step_bytes, "<i8")
        else:
            steps[at : at + count] = np.arange(first, first + stride * count, stride)
        values[at : at + count] = np.frombuffer(value_bytes, "<f8")
        at += count
    return Points(steps, values)


def rows(
    connection: sqlite3.Connection,
    runs: Collection[int],
    metrics: Collection[int],
    attempt: int | None,
) -> dict[Key, Points]:
    """Read the points that are still rows."""
    given = {"runs": json.dumps([*runs]), "metrics": json.dumps([*metrics]), "attempt": attempt}
    found: dict[Key, Points] = {}
    for key, its in groupby(connection.execute(_ROWS, given), _KEY):
        *_, steps, values = zip(*its, strict=True)
        # None becomes NaN.
        found[key] = Points(np.array(steps, np.int64), np.array(values, np.float64))
    return found


def merged(older: Points, newer: Points) -> Points:
    """Merge both in order of step; where both have a step, the newer's value wins."""
    if not len(newer):
        return older
    if not len(older):
        return newer
    if newer.steps[0] > older.steps[-1]:
        return Points(
            np.concatenate((older.steps, newer.steps)), np.concatenate((older.values, newer.values))
        )
    older = older.where(~np.isin(older.steps, newer.steps))
    steps = np.concatenate((older.steps, newer.steps))
    values = np.concatenate((older.values, newer.values))
    order = np.argsort(steps, kind="stable")
    return Points(steps[order], values[order])


def starts(connection: sqlite3.Connection, run: int) -> list[AttemptStart]:
    """Return the starts of a run's attempts, by attempt."""
    return starts_of(connection, [run]).get(run, [])


def starts_of(
    connection: sqlite3.Connection, runs: Collection[int]
) -> dict[int, list[AttemptStart]]:
    """Return the starts of the attempts of each of these runs, by attempt."""
    rows = connection.execute(
        "SELECT run, attempt, step, parent FROM starts"
        " WHERE run IN (SELECT value FROM json_each(?)) ORDER BY run, attempt",
        (json.dumps([*runs]),),
    )
    return {
        run: [AttemptStart(*one[1:]) for one in its] for run, its in groupby(rows, itemgetter(0))
    }


def lineage(known: Sequence[AttemptStart]) -> list[Span]:
    """Return the attempts that make the run's curve, oldest first.

    The newest attempt resumed from a checkpoint of an earlier one, at a step. Of that one the
    points up to this step count, and so on back. All other points are superseded. An attempt
    that does not record whose checkpoint it loaded is assumed to follow the one before it.
    """
    spans: list[Span] = []
    limit = NO_LIMIT
    by_attempt = {start.attempt: start for start in known}
    attempt = max(by_attempt, default=None)
    while attempt is not None:
        spans.append(Span(attempt, limit))
        start = by_attempt[attempt]
        limit = min(limit, start.step)
        earlier = [number for number in by_attempt if number < attempt]
        if limit <= 0 or not earlier:
            break
        attempt = start.parent if start.parent in earlier else max(earlier)
    return spans[::-1]


def curve(
    loaded: Mapping[Key, Points], run: int, metric: int, spans: Sequence[Span]
) -> list[tuple[int, Points]]:
    """Return the run's points by attempt, oldest first; no step is in two attempts."""
    pieces: list[tuple[int, Points]] = []
    newer: list[Ints] = []
    for span in reversed(spans):
        piece = loaded.get((run, metric, span.attempt), EMPTY)
        if len(piece) and piece.steps[-1] > span.limit:
            piece = piece.where(piece.steps <= span.limit)
        for steps in newer:
            if len(steps) and len(piece) and steps[0] <= piece.steps[-1]:
                piece = piece.where(~np.isin(piece.steps, steps))
        newer.append(piece.steps)
        pieces.append((span.attempt, piece))
    return pieces[::-1]


def superseded(
    loaded: Mapping[Key, Points],
    run: int,
    metric: int,
    known: Sequence[AttemptStart],
    spans: Sequence[Span],
) -> list[tuple[int, Points]]:
    """Return the superseded points by attempt."""
    limits = {span.attempt: span.limit for span in spans}
    found = []
    for start in known:
        piece = loaded.get((run, metric, start.attempt), EMPTY)
        piece = piece.where(piece.steps > limits.get(start.attempt, -1))
        if len(piece):
            found.append((start.attempt, piece))
    return found


def joined(pieces: Sequence[tuple[int, Points]]) -> Points:
    """Join the attempts' points into one."""
    whole = EMPTY
    for _, piece in pieces:
        whole = merged(whole, piece)
    return whole


@dataclass(slots=True)
class NewestPoint:
    """A row of ``latest`` while new points update it."""

    step: int
    value: float | None
    points: int
    low: float | None
    high: float | None
    loose: int


def forward(known: NewestPoint | None, values: dict[int, float]) -> NewestPoint:
    """Return the row updated by these points, all of which come after it."""
    numbers: Iterable[float] = values.values()
    total = sum(numbers)
    if total != total:  # noqa: PLR0124 - true for NaN, also from opposite infinities
        numbers = [value for value in numbers if value == value]  # noqa: PLR0124
    low: float | None = min(numbers, default=None)
    high: float | None = max(numbers, default=None)
    step, count = max(values), len(values)
    if known is None:
        return NewestPoint(step, values[step], count, low, high, count)
    return NewestPoint(
        step,
        values[step],
        known.points + count,
        min(_given(known.low, low), default=None),
        max(_given(known.high, high), default=None),
        known.loose + count,
    )


def _given(*numbers: float | None) -> Iterable[float]:
    return [number for number in numbers if number is not None]


def columns(row: NewestPoint) -> tuple[Any, ...]:
    return (row.step, row.value, row.points, row.low, row.high, row.loose)


BLOCK = 8192  # Points in a full block.
SMALL = 48  # From this many points at once on, a block is cheaper than rows.
ROWS = 256  # After so many more points, those that came as rows are moved into a small block.


def full_keys(connection: sqlite3.Connection) -> list[Key]:
    """Return the metrics that have enough loose points for a full block."""
    return connection.execute(
        "SELECT run, metric, attempt FROM latest WHERE loose >= ?", (BLOCK,)
    ).fetchall()


def put_small(connection: sqlite3.Connection, key: Key, new: Points) -> None:
    """Store points that come after all stored ones; rows that precede them join the block."""
    run, metric, attempt = key
    loose = rows(connection, [run], [metric], attempt).get(key, EMPTY)
    if len(loose):
        _delete_rows(connection, key)
    _put(connection, key, merged(loose, new))


def seal(connection: sqlite3.Connection, key: Key) -> None:
    """Join a metric's loose points into full blocks, within the caller's transaction.

    Too few for one, its rows become a small block, unless their steps are out of order.
    """
    run, metric, attempt = key
    new = rows(connection, [run], [metric], attempt).get(key, EMPTY)
    newest, small = connection.execute(
        "SELECT max(last), total(count) FILTER (WHERE count<?) FROM blocks"
        " WHERE run=? AND metric=? AND attempt=?",
        (BLOCK, *key),
    ).fetchone()
    if small + len(new) < BLOCK:
        if len(new) and (newest is None or new.steps[0] > newest):
            _delete_rows(connection, key)
            _put(connection, key, new)
        _set_loose(connection, key, int(small) + len(new))
        return
    loose = load_many(connection, [run], [metric], attempt, below=BLOCK).get(key, EMPTY)
    (sealed,) = connection.execute(
        "SELECT max(last) FROM blocks WHERE run=? AND metric=? AND attempt=? AND count>=?",
        (*key, BLOCK),
    ).fetchone()
    if len(loose) and sealed is not None and loose.steps[0] <= sealed:
        # Steps arrived out of order, before the end of sealed blocks: seal all points again.
        loose = load(connection, *key)
        connection.execute("DELETE FROM blocks WHERE run=? AND metric=? AND attempt=?", key)
    else:
        connection.execute(
            "DELETE FROM blocks WHERE run=? AND metric=? AND attempt=? AND count<?", (*key, BLOCK)
        )
    _delete_rows(connection, key)
    for begin in range(0, len(loose), BLOCK):
        part = slice(begin, begin + BLOCK)
        _put(connection, key, Points(loose.steps[part], loose.values[part]))
    _set_loose(connection, key, len(loose) % BLOCK)


def _set_loose(connection: sqlite3.Connection, key: Key, count: int) -> None:
    connection.execute(
        "UPDATE latest SET loose=? WHERE run=? AND metric=? AND attempt=?", (count, *key)
    )


def _put(connection: sqlite3.Connection, key: Key, part: Points) -> None:
    first, last, count = int(part.steps[0]), int(part.steps[-1]), len(part)
    stride = (last - first) // (count - 1) if count > 1 else 1
    even = first + stride * (count - 1) == last and bool((np.diff(part.steps) == stride).all())
    connection.execute(
        "INSERT INTO blocks VALUES (?,?,?,?,?,?,?,?,?)",
        (
            *key,
            first,
            last,
            count,
            stride if even else None,
            None if even else part.steps.astype("<i8").tobytes(),
            part.values.astype("<f8").tobytes(),
        ),
    )


def _delete_rows(connection: sqlite3.Connection, key: Key) -> None:
    connection.execute("DELETE FROM metrics WHERE run=? AND metric=? AND attempt=?", key)
