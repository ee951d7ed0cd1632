"""What trainers said, as bytes: streams replicated by offset, and read again."""

from __future__ import annotations

import logging
import shutil
from dataclasses import dataclass

from sqlmodel import select

from lehr import home as homes
from lehr.errors import Fenced, NotFound, UserError, nearest
from lehr.schemas import LogChunk, LogStream
from lehr.store.base import StoreBase
from lehr.store.changes import Change
from lehr.store.records.runs import DELETE
from lehr.store.streams import index
from lehr.store.streams.appender import Appender
from lehr.store.streams.indexer import Indexer
from lehr.store.streams.log_text import LogMatch, search, tail_start, text_of
from lehr.store.streams.reindex import catch_up
from lehr.store.streams.replica import Gap, Replica, check_name, is_events, sync_folder
from lehr.store.tables import RunRequest

MAX_APPEND = 16 << 20
"""Bytes in one append; senders use 1 MiB."""
LOG_CAP = 64 << 20
"""Bytes of one log that are kept: its beginning. The node has the rest."""

_log = logging.getLogger("lehr.store")


@dataclass(frozen=True)
class StreamInfo:
    name: str
    size: int
    """Bytes confirmed to the sender: where it goes on from."""
    stored: int
    """Bytes in the replica: less than ``size`` where a log was cut."""
    malformed: int = 0
    """Lines of events.jsonl that are no records: stored, counted, skipped."""


class Streams(StoreBase):
    _deleted: set[str]

    def _open_streams(self) -> None:
        self._replica = Replica(homes.replica_dir(self.home))
        self._known_attempts: set[str] = set()
        path = self.home / "streams.db"
        if index.version(path) != index.VERSION:
            index.remove(path)
            _log.info("streams.db is rebuilt from the replica")
            # Until it is whole it has another name; then it is there at once.
            draft = path.with_name("streams.db.draft")
            index.remove(draft)
            connection = index.create(draft, durable=False)
            catch_up(Indexer(connection, self._replica), self._replica, self.clock)
            connection.execute("PRAGMA wal_checkpoint(TRUNCATE)")
            connection.close()
            index.settle(draft, path)
        connection = index.open_writer(path)
        indexer = Indexer(connection, self._replica)
        for stream in catch_up(indexer, self._replica, self.clock):
            _log.warning(
                "%s/%s: index brought to its file, %d bytes",
                stream.attempt_id,
                stream.name,
                stream.stored,
            )
        self._index_writer = connection
        self.index = index.Readers(path)
        self._appender = Appender(
            indexer,
            self._replica,
            log_cap_bytes=self.log_cap_bytes,
            on_idle=self.db.optimize,
        )
        with self.db.read() as session:
            self._deleted = set(
                session.exec(select(RunRequest.run_id).where(RunRequest.kind == DELETE)).all()
            )
        for run_id in self._deleted:
            # A deletion that was interrupted is finished.
            if any(self._replica.root.glob(f"{run_id}-*")):
                self.forget_streams(run_id)

    def _close_streams(self) -> None:
        self._appender.close()
        self.index.close()
        self._index_writer.close()

    # ----------------------------------------------------------------------------- replication

    def append_stream(self, attempt_id: str, name: str, offset: int, data: bytes) -> int:
        """Stores ``data`` at ``offset`` of a stream and returns the offset to go on from.

        Once it returns, the bytes are on disk and their records can be read. Bytes of any attempt
        are taken, superseded ones too: they are history. Repeating an append is harmless.

        Raises:
            OffsetMismatch: the stream goes on elsewhere, at ``expected``.
            StoreUnavailable: the disk or database refused; nothing was acknowledged.
            Fenced: the run was deleted.
        """
        check_name(name)
        if len(data) > MAX_APPEND:
            raise UserError(
                f"{len(data):,} bytes in one append; at most {MAX_APPEND:,} are allowed."
            )
        run_id = self._run_of(attempt_id)
        if run_id in self._deleted:
            raise Fenced(f"{run_id} was deleted; its streams are closed.")
        size = self._appender.append(attempt_id, name, offset, bytes(data)).result()
        if data:
            attempt = int(attempt_id.rpartition("-")[2])
            kind = Change("metrics", run_id, attempt)
            log = Change("log", run_id, attempt, name, size)
            self.db.changed(kind if is_events(name) else log)
        return size

    def forget_streams(self, run_id: str) -> int:
        """Removes what a deleted run said, from the index and the replica; the bytes freed.

        ``mark_deleted`` comes first. Repeating it is harmless, and what a crash left half done is
        finished when the store opens.
        """
        self._deleted.add(run_id)
        folders = sorted(self._replica.root.glob(f"{run_id}-*"))
        freed = self.stored_bytes(run_id)
        self._appender.call(lambda indexer: indexer.drop(run_id)).result()
        for folder in folders:
            shutil.rmtree(folder)
        sync_folder(self._replica.root)
        return freed

    def stored_bytes(self, run_id: str) -> int:
        """Of the run's streams, in the replica."""
        return sum(
            path.stat().st_size
            for folder in self._replica.root.glob(f"{run_id}-*")
            for path in folder.iterdir()
            if path.is_file()
        )

    def stream_sizes(self, attempt_id: str) -> dict[str, int]:
        """Where each stream of the attempt goes on."""
        return {stream.name: stream.size for stream in self.streams(attempt_id)}

    def streams(self, attempt_id: str) -> list[StreamInfo]:
        run_id = self._run_of(attempt_id)
        with self.index.read() as connection:
            rows = connection.execute(
                "SELECT name, size, stored, malformed FROM streams"
                " WHERE run=(SELECT id FROM runs WHERE run=?) AND attempt=? ORDER BY name",
                (run_id, int(attempt_id.rpartition("-")[2])),
            ).fetchall()
        return [StreamInfo(*row) for row in rows]

    def record_gap(self, attempt_id: str, name: str, source_size: int) -> Gap:
        """Notes that the sender's file is shorter than what it sent before: the stream ends."""
        self._run_of(attempt_id)
        expected = self._stream(attempt_id, name).size
        gap = Gap(name, source_size, expected, "the sender's file became shorter", self.clock())
        self._appender.call(lambda _: self._replica.note_gap(attempt_id, gap)).result()
        return gap

    def gaps(self, attempt_id: str) -> list[Gap]:
        """What is missing of the attempt's streams and will not come."""
        self._run_of(attempt_id)
        return self._replica.gaps(attempt_id)

    # --------------------------------------------------------------------------------- reading

    def read_stream(
        self, attempt_id: str, name: str, offset: int = 0, limit: int = 1 << 20
    ) -> bytes:
        """At most ``limit`` bytes from ``offset`` on; none at the end."""
        stream = self._stream(attempt_id, name)
        limit = min(limit, stream.stored - offset)
        if offset < 0 or limit <= 0:
            return b""
        return self._replica.read(attempt_id, name, offset, limit)

    def log_streams(self, run_id: str) -> list[LogStream]:
        """The logs of all attempts of a run; the newest attempt first."""
        with self.index.read() as connection:
            rows = connection.execute(
                "SELECT attempt, name, size, stored FROM streams"
                " WHERE run=(SELECT id FROM runs WHERE run=?) ORDER BY attempt DESC, name",
                (run_id,),
            ).fetchall()
        logs = [
            LogStream(
                name=name,
                attempt=attempt,
                size_bytes=stored,
                cut=stored < size or stored >= self.log_cap_bytes,
            )
            for attempt, name, size, stored in rows
            if not is_events(name)
        ]
        return sorted(logs, key=lambda log: (-log.attempt, _rank(log.name)))

    def read_log(
        self, attempt_id: str, name: str, offset: int = 0, limit: int = 1 << 20
    ) -> LogChunk:
        """Text from ``offset`` on, at most ``limit`` bytes, cut between characters."""
        if offset < 0 or limit < 1:
            raise UserError(f"offset {offset} and limit {limit}: from 0, and at least 1.")
        stream = self._stream(attempt_id, name)
        ended = not self._attempt_row(attempt_id).open
        data = self.read_stream(attempt_id, name, offset, max(limit, 4))
        begin, text, end = text_of(
            data, offset, whole=ended and offset + len(data) >= stream.stored
        )
        if stream.stored < stream.size and end >= stream.stored:
            text += (
                f"\n[lehr: cut after {stream.stored:,} bytes; {stream.size:,} were written,"
                f" the rest is on the node, in attempt-{attempt_id.rpartition('-')[2]}/{name}]\n"
            )
        return LogChunk(
            name=name,
            attempt=int(attempt_id.rpartition("-")[2]),
            offset=begin,
            next_offset=end,
            size_bytes=stream.stored,
            text=text,
            ended=ended,
        )

    def tail_lines(self, attempt_id: str, name: str, lines: int = 100) -> LogChunk:
        """The last ``lines`` lines, at most 1 MiB of them."""
        if lines < 0:
            raise UserError(f"tail is {lines}; it must be 0 or more lines.")
        stream = self._stream(attempt_id, name)
        begin = tail_start(
            lambda offset, limit: self._replica.read(attempt_id, name, offset, limit),
            stream.stored,
            lines,
        )
        return self.read_log(attempt_id, name, begin, max(1, stream.stored - begin))

    def search_log(
        self, attempt_id: str, name: str, text: str, *, offset: int = 0, limit: int = 100
    ) -> list[LogMatch]:
        """Lines from ``offset`` on that contain ``text``, whatever its case."""
        if not text:
            raise UserError("The search text is empty.")
        stream = self._stream(attempt_id, name)
        return search(
            lambda at, size: self._replica.read(attempt_id, name, at, size),
            stream.stored,
            text,
            offset=offset,
            limit=limit,
        )

    # --------------------------------------------------------------------------------- helpers

    def _run_of(self, attempt_id: str) -> str:
        """The id of the run of an attempt that exists."""
        if attempt_id not in self._known_attempts:
            self._attempt_row(attempt_id)
            self._known_attempts.add(attempt_id)
        return attempt_id.rpartition("-")[0]

    def _stream(self, attempt_id: str, name: str) -> StreamInfo:
        """One that has begun; NotFound names those there are."""
        check_name(name)
        known = {stream.name: stream for stream in self.streams(attempt_id)}
        if name not in known:
            near = nearest(name, known)
            raise NotFound(
                f"{attempt_id} has no stream {name}.",
                hint=f"Did you mean {near}?"
                if near
                else f"It has: {', '.join(known) or 'none yet'}.",
            )
        return known[name]


def _rank(name: str) -> tuple[int, str]:
    """rank-2.log before rank-10.log, and the others after them."""
    head, _, tail = name.partition("-")
    number = tail.removesuffix(".log")
    return (int(number), name) if head == "rank" and number.isdecimal() else (1 << 30, name)
