"""Compaction: store points in blocks, so that a long series is read and written in milliseconds.

Reading a row creates a Python object; reading a block of 8,192 points copies memory twice. Many
points at once go into a small block, few into rows of ``metrics``. When enough of both are loose
they are joined into one full block. Readers get the same points at each stage.
"""

from __future__ import annotations

import sqlite3

import numpy as np

from lehr.store.streams import points
from lehr.store.streams.points import Points

BLOCK = 8192
"""Points in a full block."""
SMALL = 48
"""From this many points at once on, a block is cheaper than rows."""

Key = tuple[int, int, int]
"""The key of a series in the index: run, metric, attempt."""


def full_keys(connection: sqlite3.Connection) -> list[Key]:
    """Return the metrics that have enough loose points for a full block."""
    return connection.execute(
        "SELECT run, metric, attempt FROM latest WHERE loose >= ?", (BLOCK,)
    ).fetchall()


def put_small(connection: sqlite3.Connection, key: Key, new: Points) -> None:
    """Store points that come after all stored ones; rows that precede them join the block."""
    rows = points.rows(connection, key)
    if len(rows):
        _delete_rows(connection, key)
    _put(connection, key, points.merged(rows, new))


def seal(connection: sqlite3.Connection, key: Key) -> None:
    """Join a metric's loose points into full blocks, within the caller's transaction."""
    loose = points.merged(points.blocks(connection, key, below=BLOCK), points.rows(connection, key))
    (sealed,) = connection.execute(
        "SELECT max(last) FROM blocks WHERE run=? AND metric=? AND attempt=? AND count>=?",
        (*key, BLOCK),
    ).fetchone()
    if len(loose) and sealed is not None and loose.steps[0] <= sealed:
        # Steps arrived out of order, before the end of sealed blocks: seal all points again.
        loose = points.load(connection, *key)
        connection.execute("DELETE FROM blocks WHERE run=? AND metric=? AND attempt=?", key)
    else:
        connection.execute(
            "DELETE FROM blocks WHERE run=? AND metric=? AND attempt=? AND count<?", (*key, BLOCK)
        )
    _delete_rows(connection, key)
    for begin in range(0, len(loose), BLOCK):
        part = slice(begin, begin + BLOCK)
        _put(connection, key, Points(loose.steps[part], loose.values[part]))
    connection.execute(
        "UPDATE latest SET loose=? WHERE run=? AND metric=? AND attempt=?",
        (len(loose) % BLOCK, *key),
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
