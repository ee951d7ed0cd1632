"""Index the bytes that arrive in the replica's files. Only the appender's thread uses it."""

from __future__ import annotations

import contextlib
import logging
import sqlite3
import zlib
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from lehr.base import own_logs
from lehr.base.lru import Lru
from lehr.store.ids import split_attempt_id
from lehr.store.streams import index, limits, points
from lehr.store.streams.parse import Parsed, parse_lines
from lehr.store.streams.points import NewestPoint, columns, forward
from lehr.store.streams.replica import Replica, is_events
from lehr_trainer.contract import layout
from lehr_trainer.contract.records import Resumed

_log = logging.getLogger("lehr.store")
MAX_LINE = 8 << 20  # A line longer than this is malformed; it is skipped unread.
_KNOWN = 2_048
"""Number of streams, runs and metrics kept in memory. Reading another one takes about 10 us."""
_SEALED_AT_ONCE = 16  # Metrics of one flush to disk: appends wait for it.
_FEW_METRICS = 100
"""The newest points of an attempt with more metrics are not kept in memory: 300 bytes each."""


@dataclass(frozen=True)
class IndexedStream:
    """One stream as it is in the index."""

    run: int
    attempt_id: str
    attempt: int
    name: str
    size: int = 0
    stored: int = 0
    indexed: int = 0
    malformed: int = 0
    crc32: int = 0  # Of the bytes in the file, as they were received; -1 if it is not known.

    def log(self, level: int, text: str, *args: object, exc_info: bool | Exception = False) -> None:
        """Log something about this stream, which is named first."""
        fields = own_logs.of_attempt(self.attempt_id)
        text = f"%s/%s: {text}"
        _log.log(level, text, self.attempt_id, self.name, *args, exc_info=exc_info, extra=fields)


class Indexer:
    def __init__(self, connection: sqlite3.Connection, replica: Replica) -> None:
        self.connection = connection
        self._replica = replica
        self._runs: Lru[str, int] = Lru(_KNOWN)
        self._metrics: Lru[str, int] = Lru(_KNOWN)
        self._streams: Lru[tuple[str, str], IndexedStream] = Lru(_KNOWN)
        self._newest: Lru[tuple[int, int], dict[int, NewestPoint]] = Lru(_KNOWN)
        self.to_seal: set[points.Key] = set(points.full_keys(connection))

    def forget(self) -> None:
        """Drop cached values after a rollback: they may not be in the file."""
        self._runs.clear()
        self._metrics.clear()
        self._streams.clear()
        self._newest.clear()

    def drop(self, run_id: str) -> None:
        """Delete all of a run's data from the index."""
        row = self.connection.execute("SELECT id FROM runs WHERE run=?", (run_id,)).fetchone()
        if row is None:
            return
        self.connection.execute("BEGIN IMMEDIATE")
        for table in ("metrics", "blocks", "latest", "starts", "records", "streams"):
            self.connection.execute(f"DELETE FROM {table} WHERE run=?", row)  # noqa: S608 - own names
        self.connection.execute("DELETE FROM runs WHERE id=?", row)
        self.connection.execute("COMMIT")
        self.to_seal = {key for key in self.to_seal if key[0] != row[0]}
        self.forget()

    # ------------------------------------------------------------------------------ streams

    def stream(self, attempt_id: str, name: str) -> IndexedStream:
        """Return the stream as last recorded; a new one starts at 0."""
        known = self._streams.get((attempt_id, name))
        if known is not None:
            return known
        run, attempt = self._numbers(attempt_id)
        row = self.connection.execute(
            "SELECT size, stored, indexed, malformed, crc32 FROM streams"
            " WHERE run=? AND attempt=? AND name=?",
            (run, attempt, name),
        ).fetchone()
        stream = IndexedStream(run, attempt_id, attempt, name, *(row or ()))
        self._streams.put((attempt_id, name), stream)
        return stream

    def put(self, stream: IndexedStream) -> None:
        self._streams.put((stream.attempt_id, stream.name), stream)
        self.connection.execute(
            "INSERT OR REPLACE INTO streams VALUES (?,?,?,?,?,?,?,?)",
            (
                stream.run,
                stream.attempt,
                stream.name,
                stream.size,
                stream.stored,
                stream.indexed,
                stream.malformed,
                stream.crc32,
            ),
        )

    def count_streams(self, attempt_id: str) -> int:
        row = self.connection.execute(
            "SELECT count(*) FROM streams WHERE run=? AND attempt=?", self._numbers(attempt_id)
        ).fetchone()
        return int(row[0])

    def stored_logs(self, attempt_id: str) -> int:
        """Return the stored bytes of all logs of the attempt."""
        row = self.connection.execute(
            "SELECT coalesce(sum(stored), 0) FROM streams WHERE run=? AND attempt=? AND name<>?",
            (*self._numbers(attempt_id), layout.EVENTS),
        ).fetchone()
        return int(row[0])

    def advance(self, stream: IndexedStream, data: bytes, stored: int) -> IndexedStream:
        """Index ``data`` at the end of a stream that now has ``stored`` bytes in its file.

        Runs within the caller's transaction. Returns the stream as it is afterwards.
        """
        after = replace(stream, size=stream.size + len(data), stored=stored)
        if stream.crc32 >= 0:
            written = memoryview(data)[: stored - stream.stored]
            after = replace(after, crc32=zlib.crc32(written, stream.crc32))
        if is_events(stream.name):
            # Bytes past the cap are not in the file; a rebuilt index would not have them either.
            after = self._advance_events(after, data) if stored > stream.stored else after
        else:
            after = replace(after, indexed=stored)
        self.put(after)
        return after

    def _advance_events(self, stream: IndexedStream, data: bytes) -> IndexedStream:
        end = data.rfind(b"\n") + 1
        if not end:
            return stream  # A torn line waits for the rest of it.
        offset = stream.size - len(data)
        begun = offset - stream.indexed
        malformed = 0
        if begun:
            first = data.index(b"\n") + 1
            if begun + first > MAX_LINE:
                malformed, data, end = 1, data[first:], end - first
                at = offset + first
            else:
                torn = self._replica.read(stream.attempt_id, stream.name, stream.indexed, begun)
                data, end, at = torn + data, end + begun, stream.indexed
        else:
            at = offset
        malformed += self._index_lines(stream, data[:end], at)
        return replace(stream, indexed=at + end, malformed=stream.malformed + malformed)

    def _index_lines(self, stream: IndexedStream, data: bytes, at: int) -> int:
        """Index whole lines that begin at ``at``; return how many of them are malformed.

        A line that raises any error counts as malformed, too: it must not stop its stream, or
        the server's start.
        """
        try:
            return self._index_piece(stream, data, at)
        except Exception as error:
            if not index.is_of_value(error):
                raise
            first = error
        malformed = 0
        for line in data.split(b"\n")[:-1]:
            try:
                malformed += self._index_piece(stream, line + b"\n", at)
            except Exception as error:
                if not index.is_of_value(error):
                    raise
                malformed += 1
            at += len(line) + 1
        text = "lines up to byte %d cannot be indexed; they are counted as malformed"
        stream.log(logging.ERROR, text, at, exc_info=first)
        return malformed

    def _index_piece(self, stream: IndexedStream, data: bytes, at: int) -> int:
        """Index all of the piece or, if anything raises, nothing of it."""
        self.connection.execute("SAVEPOINT piece")
        try:
            parsed = parse_lines(data, at)
            if stream.name != layout.EVENTS:  # Offsets from 0 on are those of the events.
                parsed.lines = [replace(one, offset=-1 - one.offset) for one in parsed.lines]
                parsed.resumed = None
            self._record(stream, parsed)
        except BaseException:
            # On a full disk SQLite may have rolled back the whole transaction itself.
            with contextlib.suppress(sqlite3.Error):
                self.connection.execute("ROLLBACK TO piece")
                self.connection.execute("RELEASE piece")
            self.forget()
            raise
        self.connection.execute("RELEASE piece")
        return parsed.malformed

    # ------------------------------------------------------------------------------ records

    def _record(self, stream: IndexedStream, parsed: Parsed) -> None:
        run, attempt = stream.run, stream.attempt
        if parsed.lines:
            index.put_rows(
                self.connection,
                "records",
                [
                    (run, attempt, line.offset, line.end, line.kind, line.time, line.body)
                    for line in parsed.lines
                ],
            )
        if parsed.resumed is not None:
            parent = _parent(parsed.resumed, attempt)
            self.connection.execute(
                "INSERT OR REPLACE INTO starts VALUES (?,?,?,?)",
                (run, attempt, parsed.resumed.step, parent),
            )
        if parsed.points:
            # An attempt that did not resume begins at 0, once it has points.
            self.connection.execute(
                "INSERT OR IGNORE INTO starts VALUES (?,?,0,NULL)", (run, attempt)
            )
            self._metrics_of(run, attempt, parsed)

    def _metrics_of(self, run: int, attempt: int, parsed: Parsed) -> None:
        newest = self._newest_of(run, attempt)
        if len(newest) + len(parsed.values) > limits.MAX_METRICS:
            self._drop_new_names(newest, parsed)
        series = {self._metric(name): values for name, values in parsed.values.items()}
        for axis, values in _axes(parsed, newest).items():
            series[axis] = values
            if axis in newest and min(values) <= newest[axis].step:
                there = {*points.load(self.connection, run, axis, attempt).steps.tolist()}
                series[axis] = {step: x for step, x in values.items() if step not in there}
        rows: list[tuple[int, int, int, int, float]] = []
        latest: list[tuple[Any, ...]] = []
        behind: list[int] = []
        for metric, values in sorted(series.items()):
            known = newest.get(metric)
            if not (steps := sorted(values)):
                continue
            if known is not None and steps[0] <= known.step:
                behind.append(metric)
            elif len(steps) >= points.SMALL:
                new = points.of(values)
                points.put_small(self.connection, (run, metric, attempt), new)
                latest.append((run, metric, attempt, *columns(forward(known, values))))
                continue
            else:
                after = forward(known, values)
                latest.append((run, metric, attempt, *columns(after)))
                if after.loose // points.ROWS > (after.loose - len(steps)) // points.ROWS:
                    self.to_seal.add((run, metric, attempt))
            rows += [(run, metric, attempt, step, values[step]) for step in steps]
        index.put_rows(self.connection, "metrics", rows)
        latest += [self._recounted(run, metric, attempt) for metric in behind]
        self.to_seal.update(row[:3] for row in latest if row[-1] >= points.BLOCK)
        index.put_rows(self.connection, "latest", latest)
        newest.update({row[1]: NewestPoint(*row[3:]) for row in latest})
        if len(newest) > _FEW_METRICS:
            self._newest.drop((run, attempt))

    def _drop_new_names(self, newest: dict[int, NewestPoint], parsed: Parsed) -> None:
        """Drop metrics whose names would be too many; each counts as malformed."""
        room = limits.MAX_METRICS - len(newest)
        for name in list(parsed.values):
            row = self.connection.execute("SELECT id FROM names WHERE name=?", (name,)).fetchone()
            if row is not None and row[0] in newest:
                continue
            room -= 1
            if room < 0:
                del parsed.values[name]
                parsed.malformed += 1

    def _newest_of(self, run: int, attempt: int) -> dict[int, NewestPoint]:
        """Return the rows of ``latest`` of an attempt; the caller keeps them up to date."""
        known = self._newest.get((run, attempt))
        if known is not None:
            return known
        rows = self.connection.execute(
            "SELECT metric, step, value, points, low, high, loose FROM latest"
            " WHERE run=? AND attempt=?",
            (run, attempt),
        )
        found = {metric: NewestPoint(*values) for metric, *values in rows}
        if len(found) <= _FEW_METRICS:
            self._newest.put((run, attempt), found)
        return found

    def _recounted(self, run: int, metric: int, attempt: int) -> tuple[Any, ...]:
        """Count all points again: a step that is repeated or out of order may replace one."""
        everything = points.load(self.connection, run, metric, attempt)
        (sealed,) = self.connection.execute(
            "SELECT coalesce(sum(count), 0) FROM blocks"
            " WHERE run=? AND metric=? AND attempt=? AND count>=?",
            (run, metric, attempt, points.BLOCK),
        ).fetchone()
        after = forward(
            None, dict(zip(everything.steps.tolist(), everything.values.tolist(), strict=True))
        )
        after.loose = max(0, after.points - sealed)
        return (run, metric, attempt, *columns(after))

    # ------------------------------------------------------------------------------ sealing

    def seal_all(self) -> None:
        while self.to_seal:
            self.seal_some()

    def seal_some(self) -> None:
        """Seal some metrics that have enough rows, in a transaction of their own."""
        keys = [self.to_seal.pop() for _ in range(min(_SEALED_AT_ONCE, len(self.to_seal)))]
        self.connection.execute("BEGIN IMMEDIATE")
        try:
            for key in keys:
                points.seal(self.connection, key)
            self.connection.execute("COMMIT")
        except BaseException:
            self.connection.execute("ROLLBACK")
            raise
        for key in keys:
            self._newest.drop((key[0], key[2]))  # Its counts of loose points are outdated.

    # ------------------------------------------------------------------------------- numbers

    def _numbers(self, attempt_id: str) -> tuple[int, int]:
        """Return the number of the run in this index, and that of the attempt."""
        parts = split_attempt_id(attempt_id)
        assert parts is not None
        return self._run(parts[0]), parts[1]

    def _run(self, run_id: str) -> int:
        return self._number("runs", "run", run_id, self._runs)

    def _metric(self, name: str) -> int:
        return self._number("names", "name", name, self._metrics)

    def _number(self, table: str, column: str, text: str, known: Lru[str, int]) -> int:
        number = known.get(text)
        if number is None:
            # The table names are constants, never input.
            self.connection.execute(f"INSERT OR IGNORE INTO {table} ({column}) VALUES (?)", (text,))  # noqa: S608
            row = self.connection.execute(
                f"SELECT id FROM {table} WHERE {column}=?",  # noqa: S608
                (text,),
            ).fetchone()
            number = int(row[0])
            known.put(text, number)
        return number


def _axes(parsed: Parsed, newest: dict[int, NewestPoint]) -> dict[int, dict[int, float]]:
    """Index the tokens and time of each step, from its first record."""
    known = newest.get(index.TIME)
    top = -1 if known is None else known.step
    tokens: dict[int, float] = {}
    time: dict[int, float] = {}
    for step, seen, at in parsed.points:
        if step == top:
            continue
        top = max(top, step)
        time.setdefault(step, at)
        if seen is not None:
            tokens.setdefault(step, seen)
    found = {index.TIME: time} if time else {}
    return found | {index.TOKENS: tokens} if tokens else found


def _parent(resumed: Resumed, attempt: int) -> int | None:
    """Return the attempt whose checkpoint was loaded, if the path within the run names it."""
    number = layout.attempt_number(Path(resumed.checkpoint.partition("/")[0]))
    return number if number is not None and number < attempt else None
