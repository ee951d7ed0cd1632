"""Logs of attempts, read as text: from an offset, from the end, or searched."""

from __future__ import annotations

from lehr.errors import UserError
from lehr.stopped import Stopped, never
from lehr.store.records.attempts import Attempts
from lehr.store.streams import log_text
from lehr.store.streams.index import Readers
from lehr.store.streams.log_text import LogMatch
from lehr.store.streams.replica import Replica, is_events
from lehr.store.streams.replication import Streams
from lehr.store.streams.values import LogFile, LogText

LOG_CAP = 64 << 20
"""How many bytes of one log are stored, from its beginning. The node has the rest."""


class Logs:
    """The logs of attempts: all streams but ``events.jsonl``."""

    def __init__(
        self,
        streams: Streams,
        replica: Replica,
        index: Readers,
        attempts: Attempts,
        *,
        cap_bytes: int,
    ) -> None:
        self._streams = streams
        self._replica = replica
        self._index = index
        self._attempts = attempts
        self._cap_bytes = cap_bytes

    def of_run(self, run_id: str) -> list[LogFile]:
        """List the logs of all attempts of a run; the newest attempt first."""
        with self._index.read() as connection:
            rows = connection.execute(
                "SELECT attempt, name, size, stored FROM streams"
                " WHERE run=(SELECT id FROM runs WHERE run=?) ORDER BY attempt DESC, name",
                (run_id,),
            ).fetchall()
        logs = [
            LogFile(
                name=name,
                attempt=attempt,
                size_bytes=stored,
                cut=stored < size or stored >= self._cap_bytes,
            )
            for attempt, name, size, stored in rows
            if not is_events(name)
        ]
        return sorted(logs, key=lambda log: (-log.attempt, _rank(log.name)))

    def read(self, attempt_id: str, name: str, offset: int = 0, limit: int = 1 << 20) -> LogText:
        """Read text from ``offset`` on: at most ``limit`` bytes, cut between characters."""
        if offset < 0 or limit < 1:
            raise UserError(
                f"offset is {offset} and limit is {limit}; they must be at least 0 and 1."
            )
        stream = self._streams.find(attempt_id, name)
        ended = not self._attempts.get(attempt_id).open
        data = self._streams.read(attempt_id, name, offset, max(limit, 4))
        begin, text, end = log_text.text_of(
            data, offset, whole=ended and offset + len(data) >= stream.stored
        )
        if stream.stored < stream.size and end >= stream.stored:
            text += (
                f"\n[lehr: cut after {stream.stored:,} bytes; {stream.size:,} were written,"
                f" the rest is on the node, in attempt-{attempt_id.rpartition('-')[2]}/{name}]\n"
            )
        return LogText(
            name=name,
            attempt=int(attempt_id.rpartition("-")[2]),
            offset=begin,
            next_offset=end,
            size_bytes=stream.stored,
            text=text,
            ended=ended,
        )

    def tail(self, attempt_id: str, name: str, lines: int = 100) -> LogText:
        """Read the last ``lines`` lines, at most 1 MiB of them."""
        if lines < 0:
            raise UserError(f"tail is {lines}; it must be 0 or more lines.")
        stream = self._streams.find(attempt_id, name)
        begin = log_text.tail_start(
            lambda offset, limit: self._replica.read(attempt_id, name, offset, limit),
            stream.stored,
            lines,
        )
        return self.read(attempt_id, name, begin, max(1, stream.stored - begin))

    def search(
        self,
        attempt_id: str,
        name: str,
        text: str,
        *,
        offset: int = 0,
        limit: int = 100,
        stopped: Stopped = never,
    ) -> list[LogMatch]:
        """Find lines from ``offset`` on that contain ``text``; ASCII case does not matter."""
        if not text:
            raise UserError("text is empty; it must have at least one character.")
        stream = self._streams.find(attempt_id, name)
        return log_text.search(
            lambda at, size: self._replica.read(attempt_id, name, at, size),
            stream.stored,
            text,
            offset=offset,
            limit=limit,
            stopped=stopped,
        )


def _rank(name: str) -> tuple[int, str]:
    """Sort rank-2.log before rank-10.log, and other names after them."""
    head, _, tail = name.partition("-")
    number = tail.removesuffix(".log")
    return (int(number), name) if head == "rank" and number.isdecimal() else (1 << 30, name)
