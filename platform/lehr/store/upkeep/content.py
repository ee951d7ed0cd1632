"""Compare the replica with what was received, and the index with a fresh one of the replica."""

from __future__ import annotations

import sqlite3
import zlib
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, NamedTuple

import numpy as np

from lehr.store.ids import attempt_id
from lehr.store.read_only import open_read_only
from lehr.store.streams import index, points
from lehr.store.streams.indexer import Indexer
from lehr.store.streams.replica import Replica, is_events

_READ = 4 << 20
_OF_ATTEMPT = {
    "records": "SELECT offset, ending, kind, time, body FROM records WHERE run=? AND attempt=?"
    " ORDER BY offset",
    "starts": "SELECT step, parent FROM starts WHERE run=? AND attempt=?",
    "events": "SELECT indexed FROM streams WHERE run=? AND attempt=? AND name='events.jsonl'",
}
_LATEST = "SELECT metric, step, value, points, low, high FROM latest WHERE run=? AND attempt=?"


class StoredStream(NamedTuple):
    """A row of the index. ``stored`` bytes of the file are compared; it may grow meanwhile."""

    run: str
    attempt: int
    name: str
    stored: int
    crc32: int

    @property
    def attempt_id(self) -> str:
        return attempt_id(self.run, self.attempt)


def received(path: Path) -> list[StoredStream]:
    """Return the streams of an index; none if it cannot be read."""
    try:
        with closing(open_read_only(path)) as connection:
            rows = connection.execute(
                "SELECT runs.run, attempt, name, stored, crc32 FROM streams"
                " JOIN runs ON runs.id = streams.run WHERE crc32 >= 0"
            )
            return [StoredStream(*row) for row in rows]
    except (sqlite3.Error, UnicodeDecodeError):
        return []


def keep_received(path: Path, streams: list[StoredStream]) -> None:
    """Put the checksums of what was received into an index that was made of the replica."""
    with closing(sqlite3.connect(path)) as connection, connection:
        connection.executemany(
            "UPDATE streams SET crc32=:crc32 WHERE attempt=:attempt AND name=:name"
            " AND stored=:stored AND run=(SELECT id FROM runs WHERE runs.run=:run)",
            [one._asdict() for one in streams],
        )


def differences(
    connection: sqlite3.Connection, replica: Replica, streams: list[StoredStream]
) -> Iterator[tuple[str, str]]:
    """Yield streams, and what is wrong with each. ``connection``: a view of the index.

    The fresh index holds an attempt at a time, so that it stays small.
    """
    with (
        TemporaryDirectory(prefix="lehr-check-") as folder,
        closing(index.create(Path(folder) / "fresh.db", durable=False)) as fresh,
    ):
        indexer = Indexer(fresh, replica)
        for stream in streams:
            fault = _replica_fault(replica, stream)
            if fault is None and is_events(stream.name):
                fault = _index_fault(connection, indexer, replica, stream)
            if fault is not None:
                yield f"{stream.attempt_id}/{stream.name}", fault


def _pieces(replica: Replica, stream: StoredStream) -> Iterator[bytes]:
    at = 0
    while at < stream.stored:
        data = replica.read(stream.attempt_id, stream.name, at, min(_READ, stream.stored - at))
        if not data:
            return
        at += len(data)
        yield data


def _replica_fault(replica: Replica, stream: StoredStream) -> str | None:
    crc32 = size = 0
    for data in _pieces(replica, stream):
        crc32, size = zlib.crc32(data, crc32), size + len(data)
    if size < stream.stored:
        return f"has {size:,} of the {stream.stored:,} bytes that were stored"
    if stream.crc32 not in {crc32, -1}:
        return "its bytes in the replica are not those that were received; a backup may have them"
    return None


def _index_fault(
    connection: sqlite3.Connection, indexer: Indexer, replica: Replica, stream: StoredStream
) -> str | None:
    """Index the stream again, and return what the index has otherwise."""
    entry = indexer.stream(stream.attempt_id, stream.name)
    indexer.connection.execute("BEGIN IMMEDIATE")
    for data in _pieces(replica, stream):
        entry = indexer.advance(entry, data, entry.stored + len(data))
    indexer.connection.execute("COMMIT")
    found = _content(connection, stream)
    expected = _content(indexer.connection, stream)
    indexer.drop(stream.run)
    wrong = [name for name in expected | found if not _equal(expected.get(name), found.get(name))]
    if not wrong:
        return None
    return f"streams.db differs from it in {', '.join(sorted(wrong)[:3])}: lehr db rebuild"


def _content(connection: sqlite3.Connection, stream: StoredStream) -> dict[str, Any]:
    """Return what an index has of an attempt, by name of the metric or table."""
    run = index.run_number(connection, stream.run)
    names = dict(connection.execute("SELECT id, name FROM names").fetchall())
    names |= {index.TOKENS: "tokens", index.TIME: "time"}
    of_attempt = run, stream.attempt
    found: dict[str, Any] = {
        table: connection.execute(query, of_attempt).fetchall()
        for table, query in _OF_ATTEMPT.items()
    }
    for metric, *newest in connection.execute(_LATEST, of_attempt).fetchall():
        series = points.load(connection, run, metric, stream.attempt)
        # Their bits, since NaN is not equal to itself.
        bits = series.values.view(np.int64).tolist() if len(series) else []
        found[names.get(metric, f"metric {metric}")] = newest, series.steps.tolist(), bits
    return found


def _equal(one: Any, other: Any) -> bool:
    return repr(one) == repr(other)
