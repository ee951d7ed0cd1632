"""Bring the index up to date with the replica's files, after a crash or from nothing."""

from __future__ import annotations

import logging
import sqlite3
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

from lehr.store.ids import attempt_id as id_of
from lehr.store.streams import index
from lehr.store.streams.indexer import IndexedStream, Indexer
from lehr.store.streams.replica import SCORES, Gap, Replica
from lehr_trainer.contract import layout

_READ = 4 << 20
_COMMIT = 64 << 20
_log = logging.getLogger("lehr.store")


def open_index(path: Path, replica: Replica, clock: Callable[[], float]) -> Indexer:
    """Open the index for writing, brought up to date; rebuild one of another version."""
    if index.version(path) != index.VERSION:
        index.remove(path)
        _log.info("streams.db is rebuilt from the replica")
        # An incomplete index has another name; a rename then makes it available at once.
        draft = path.with_name("streams.db.draft")
        index.remove(draft)
        connection = index.create(draft, durable=False)
        catch_up(Indexer(connection, replica), replica, clock)
        connection.execute("PRAGMA wal_checkpoint(TRUNCATE)")
        connection.close()
        index.settle(draft, path)
    indexer = Indexer(index.open_writer(path), replica)
    for stream in catch_up(indexer, replica, clock):
        stream.log(
            logging.WARNING, "the index was updated from the file of %d bytes", stream.stored
        )
    return indexer


def catch_up(indexer: Indexer, replica: Replica, clock: Callable[[], float]) -> list[IndexedStream]:
    """Bring the index up to date with the replica's files, after a crash or from nothing.

    Bytes past the cursor are indexed: they were written and not acknowledged, or the index is
    older than the replica. A file that is shorter than its row in the index is indexed again
    from its beginning, and the gap is recorded. A stream that cannot be indexed is skipped,
    logged and recorded as a gap; the others go on. Returns what was changed.
    """
    changed: list[IndexedStream] = []
    seen: set[tuple[int, int, str]] = set()
    for attempt_id, sizes in replica.files():
        for name, size in sizes.items():
            stream = indexer.stream(attempt_id, name)
            seen.add((stream.run, stream.attempt, name))
            if size != stream.stored:
                changed += _mended(indexer, replica, clock, stream, size)
    for run_id, run, attempt, name in indexer.connection.execute(
        "SELECT runs.run, runs.id, attempt, name FROM streams"
        " JOIN runs ON runs.id = streams.run WHERE stored > 0"
    ).fetchall():
        if (run, attempt, name) not in seen:
            stream = indexer.stream(id_of(run_id, attempt), name)
            changed += _mended(indexer, replica, clock, stream, 0)
    return changed


class _NotFlushed(Exception):
    """The disk refused to flush what is in a file."""


def _mended(
    indexer: Indexer, replica: Replica, clock: Callable[[], float], stream: IndexedStream, size: int
) -> list[IndexedStream]:
    """Repair a stream, or skip what cannot be indexed; return [] if nothing changed."""
    try:
        if size > stream.stored:
            size = _written(replica, stream, size)
        return [_mend(indexer, replica, clock, stream, size)] if size != stream.stored else []
    except _NotFlushed:
        # They do not count as stored, so their sender, if it still runs, sends them again.
        stream.log(
            logging.ERROR,
            "bytes that an earlier server left cannot be flushed; they are not read",
            exc_info=True,
        )
        after = indexer.stream(stream.attempt_id, stream.name)
        return [after] if after != stream else []
    except Exception as error:
        if isinstance(error, sqlite3.Error) and not index.is_of_value(error):
            raise  # The index itself fails, so every other stream would fail too.
        stream.log(
            logging.ERROR, "cannot be indexed; skipped until: lehr db rebuild", exc_info=True
        )
        return [_skip(indexer, replica, clock, stream, size, error)]


def _skip(
    indexer: Indexer,
    replica: Replica,
    clock: Callable[[], float],
    stream: IndexedStream,
    size: int,
    error: Exception,
) -> IndexedStream:
    """Record a gap up to the file's end, and continue from there."""
    if indexer.connection.in_transaction:
        indexer.connection.execute("ROLLBACK")
    indexer.forget()
    stream = indexer.stream(stream.attempt_id, stream.name)
    gap = Gap(stream.name, stream.indexed, size, f"cannot be indexed: {error!r}"[:500], clock())
    try:
        known = [(one.offset, one.expected) for one in replica.gaps(stream.attempt_id)]
        if (gap.offset, gap.expected) not in known:
            replica.note_gap(stream.attempt_id, gap)
    except OSError:
        stream.log(logging.ERROR, "the gap cannot be recorded", exc_info=True)
    skipped = replace(stream, size=max(stream.size, size), stored=size, indexed=size, crc32=-1)
    indexer.connection.execute("BEGIN IMMEDIATE")
    indexer.put(skipped)
    indexer.connection.execute("COMMIT")
    return skipped


def _written(replica: Replica, stream: IndexedStream, size: int) -> int:
    """Return the length without the NULs that a power cut can leave at the end of a file."""
    while size > stream.stored:
        begin = max(stream.stored, size - _READ)
        data = replica.read(stream.attempt_id, stream.name, begin, size - begin)
        kept = len(data.rstrip(b"\0"))
        if kept:
            return begin + kept
        size = begin
    return size


def _mend(
    indexer: Indexer, replica: Replica, clock: Callable[[], float], stream: IndexedStream, size: int
) -> IndexedStream:
    if size < stream.stored:
        stream.log(
            logging.ERROR, "the file shrank from %d to %d bytes; indexed again", stream.stored, size
        )
        cause = "the replica's file lost bytes"
        gap = Gap(stream.name, size, stream.stored, cause, clock())
        replica.note_gap(stream.attempt_id, gap)
        indexer.connection.execute("BEGIN IMMEDIATE")
        _clear(indexer, stream)
        indexer.connection.execute("COMMIT")
        stream = indexer.stream(stream.attempt_id, stream.name)
    if stream.stored < size:
        # A server that was killed may have written these bytes and not flushed them. From here on
        # they count as acknowledged.
        try:
            replica.flush(stream.attempt_id, stream.name)
        except OSError as error:
            raise _NotFlushed from error
    uncommitted = _COMMIT
    indexer.connection.execute("BEGIN IMMEDIATE")
    while stream.stored < size:
        limit = min(_READ, size - stream.stored)
        data = replica.read(stream.attempt_id, stream.name, stream.stored, limit)
        stream = indexer.advance(stream, data, stream.stored + len(data))
        uncommitted -= len(data)
        if uncommitted <= 0:
            indexer.connection.execute("COMMIT")
            indexer.seal_all()
            indexer.connection.execute("BEGIN IMMEDIATE")
            uncommitted = _COMMIT
    indexer.put(stream)
    indexer.connection.execute("COMMIT")
    indexer.seal_all()
    return stream


def _clear(indexer: Indexer, stream: IndexedStream) -> None:
    """Delete a stream from the index, within the caller's transaction."""
    run, attempt = stream.run, stream.attempt
    if stream.name == layout.EVENTS:
        metrics = [
            metric
            for (metric,) in indexer.connection.execute(
                "SELECT metric FROM latest WHERE run=? AND attempt=?", (run, attempt)
            )
        ]
        for table in ("metrics", "blocks"):
            indexer.connection.executemany(
                f"DELETE FROM {table} WHERE run=? AND metric=? AND attempt=?",  # noqa: S608 - one of two tables
                [(run, metric, attempt) for metric in metrics],
            )
        for table in ("latest", "starts", "records"):
            indexer.connection.execute(
                f"DELETE FROM {table} WHERE run=? AND attempt=?",  # noqa: S608 - one of three tables
                (run, attempt),
            )
        indexer.forget()
        # Their points are gone, too, and are indexed again.
        indexer.put(IndexedStream(run, stream.attempt_id, attempt, SCORES))
    indexer.put(IndexedStream(run, stream.attempt_id, attempt, stream.name))
