"""Streams of attempts, replicated by offset."""

from __future__ import annotations

import threading
from collections.abc import Collection
from dataclasses import dataclass, field

from lehr.base.lru import Lru
from lehr.errors import Fenced, NotFound, UserError, did_you_mean
from lehr.store.changes import Change
from lehr.store.database import Clock, Database
from lehr.store.ids import run_of
from lehr.store.records.attempts import Attempts
from lehr.store.streams.appender import Answer, Appender, EndOfStream
from lehr.store.streams.index import Readers
from lehr.store.streams.replica import SHORTER, Gap, Replica, check_name, is_events
from lehr_trainer.files import fsync_folder

MAX_APPEND = 16 << 20  # The maximum of one append in bytes; senders use 1 MiB.
_KNOWN = 4_096
"""Attempts whose run is known to exist: more than append at the same time on a large cluster."""


@dataclass(frozen=True)
class StreamInfo:
    name: str
    size: int  # Bytes confirmed to the sender: the offset from which it continues.
    stored: int  # Bytes in the replica: less than ``size`` where a log was cut.
    malformed: int = 0  # Lines of events.jsonl that are malformed: stored, counted, skipped.
    crc32: int = -1  # Of the stored bytes; -1 if it is not known.


@dataclass(eq=False, repr=False)
class Streams:
    """The streams of all attempts, byte for byte: append, read, forget."""

    replica: Replica
    appender: Appender
    index: Readers
    db: Database
    attempts: Attempts
    clock: Clock
    _guard: threading.Lock = field(default_factory=threading.Lock, init=False)
    _open: Lru[str, bool] = field(default_factory=lambda: Lru(_KNOWN), init=False)
    """Attempts that exist and whose run is not deleted."""
    _deletions: int = field(default=0, init=False)

    def finish_deletions(self, run_ids: Collection[str]) -> None:
        """Remove what an interrupted deletion of these runs has left."""
        for run_id in sorted(self.replica.runs().intersection(run_ids)):
            self.forget(run_id)

    def append(self, attempt_id: str, name: str, offset: int, data: bytes) -> int:
        """Store ``data`` at ``offset`` of a stream; return the offset to continue from.

        When it returns, the bytes are on disk and their records can be read. Bytes of superseded
        attempts are stored, too: they are history. Repeating an append is harmless.

        Raises:
            OffsetMismatch: the stream continues at another offset, ``expected``.
            StoreUnavailable: the disk or the database rejected the write; nothing was acknowledged.
            Fenced: the run was deleted.
        """
        waiting = EndOfStream()
        self.begin_append(attempt_id, name, offset, data, waiting.answer)
        size = waiting.result()
        if data:
            self.publish(attempt_id, name, size)
        return size

    def begin_append(
        self, attempt_id: str, name: str, offset: int, data: bytes, answer: Answer
    ) -> None:
        """Queue an append. ``answer`` gets what ``append`` returns or raises, in another thread.

        Whoever gets it calls ``publish`` afterwards. All appends that are queued at one moment
        share a transaction, so a caller with many need not wait for each.
        """
        check_name(name)
        if len(data) > MAX_APPEND:
            raise UserError(
                f"{len(data):,} bytes in one append; at most {MAX_APPEND:,} are allowed."
            )
        self.require_open(attempt_id)
        self.appender.append(attempt_id, name, offset, bytes(data), answer)

    def publish(self, attempt_id: str, name: str, size: int) -> None:
        """Notify subscribers that a stream has grown to ``size`` bytes."""
        run_id, attempt = run_of(attempt_id), int(attempt_id.rpartition("-")[2])
        self.db.changed(
            Change("metrics", run_id, attempt)
            if is_events(name)
            else Change("log", run_id, attempt, name, size)
        )

    def forget(self, run_id: str) -> int:
        """Remove a deleted run's streams from the index and the replica; return the bytes freed.

        ``Runs.mark_deleted`` comes first. Repeating it is harmless, and what a crash left half
        done is finished when the store opens.
        """
        attempts = self.attempts.of_run(run_id)
        with self._guard:
            self._deletions += 1
            for attempt in attempts:
                self._open.drop(attempt.id)
        freed = self.stored_bytes(run_id)
        self.appender.call(lambda indexer: indexer.drop(run_id)).result()
        for attempt in attempts:
            self.replica.remove(attempt.id)
        fsync_folder(self.replica.root)
        return freed

    def stored_bytes(self, run_id: str) -> int:
        """Return the size of the run's streams in the replica."""
        # The attempts are in lehr.db. Searching the replica for them would read its whole folder.
        attempts = self.attempts.of_run(run_id)
        return sum(self.replica.stored_bytes(attempt.id) for attempt in attempts)

    def find(self, attempt_id: str, name: str) -> StreamInfo:
        """Find a stream that has begun; NotFound lists those that exist."""
        check_name(name)
        known = {stream.name: stream for stream in self.of_attempt(attempt_id)}
        if name not in known:
            raise NotFound(
                f"{attempt_id} has no stream {name}.",
                hint=did_you_mean(name, known) or f"It has: {', '.join(known) or 'none yet'}.",
            )
        return known[name]

    def sizes(self, attempt_id: str) -> dict[str, int]:
        """Return the offset from which each stream of the attempt continues."""
        return {stream.name: stream.size for stream in self.of_attempt(attempt_id)}

    def of_attempt(self, attempt_id: str) -> list[StreamInfo]:
        """Return the attempt's streams, by name."""
        run_id = self._run_of(attempt_id)
        with self.index.read() as connection:
            rows = connection.execute(
                "SELECT name, size, stored, malformed, crc32 FROM streams"
                " WHERE run=(SELECT id FROM runs WHERE run=?) AND attempt=? ORDER BY name",
                (run_id, int(attempt_id.rpartition("-")[2])),
            ).fetchall()
        return [StreamInfo(*row) for row in rows]

    def record_gap(self, attempt_id: str, name: str, source_size: int) -> Gap:
        """Record, once, that the sender's file is shorter than what it sent before: what was
        written to it meanwhile is lost.
        """
        self._run_of(attempt_id)
        expected = self.find(attempt_id, name).size
        gap = Gap(name, source_size, expected, SHORTER, self.clock())

        def note(_: object) -> None:
            known = [(one.name, one.offset, one.expected) for one in self.replica.gaps(attempt_id)]
            if (name, source_size, expected) not in known:
                self.replica.note_gap(attempt_id, gap)

        self.appender.call(note).result()
        self.publish(attempt_id, name, expected)
        return gap

    def gaps(self, attempt_id: str) -> list[Gap]:
        """Return the gaps of the attempt's streams: bytes that are lost."""
        self._run_of(attempt_id)
        return self.replica.gaps(attempt_id)

    def read(self, attempt_id: str, name: str, offset: int = 0, limit: int = 1 << 20) -> bytes:
        """Read at most ``limit`` bytes from ``offset`` on; none at the end."""
        stream = self.find(attempt_id, name)
        limit = min(limit, stream.stored - offset)
        if offset < 0 or limit <= 0:
            return b""
        return self.replica.read(attempt_id, name, offset, limit)

    def _run_of(self, attempt_id: str) -> str:
        """Return the id of the run of an attempt that exists."""
        if not self.is_open(attempt_id):
            self.attempts.get(attempt_id)
        return run_of(attempt_id)

    def is_open(self, attempt_id: str) -> bool:
        """Return whether ``require_open`` needs no look at the record."""
        return self._open.get(attempt_id) is not None

    def require_open(self, attempt_id: str) -> None:
        """Check that the attempt exists; raise Fenced if its run was deleted."""
        if self.is_open(attempt_id):
            return
        deletions = self._deletions
        if self.attempts.of_deleted_run(attempt_id):
            raise Fenced(f"{run_of(attempt_id)} was deleted; its streams are closed.")
        with self._guard:
            if deletions == self._deletions:  # After a deletion, the next call checks again.
                self._open.put(attempt_id, True)
