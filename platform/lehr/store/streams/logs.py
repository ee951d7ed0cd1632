"""Logs of attempts, read as text: from an offset, from the end, or searched."""

from __future__ import annotations

import codecs
from collections.abc import Callable
from dataclasses import KW_ONLY, dataclass

from lehr.base.stopped import Stopped, never
from lehr.errors import UserError
from lehr.store.records.attempts import Attempts
from lehr.store.streams.index import Readers
from lehr.store.streams.replica import Replica, is_events
from lehr.store.streams.replication import Streams
from lehr_trainer.contract import layout

LOG_CAP = 64 << 20
"""How many bytes of one log are stored, from its beginning. The node has the rest."""


@dataclass(frozen=True)
class LogFile:
    """A log of an attempt."""

    name: str
    attempt: int
    size_bytes: int
    cut: bool  # Whether only its beginning is stored.


@dataclass(frozen=True)
class LogText:
    """A part of a log, as text."""

    name: str
    attempt: int
    offset: int
    next_offset: int
    size_bytes: int
    text: str
    ended: bool  # Whether the text is complete: the attempt is closed.


@dataclass(eq=False, repr=False)
class Logs:
    """The logs of attempts: all streams but events and media."""

    streams: Streams
    replica: Replica
    index: Readers
    attempts: Attempts
    _: KW_ONLY
    cap_bytes: int

    def of_run(self, run_id: str) -> list[LogFile]:
        """List the logs of all attempts of a run; the newest attempt first."""
        with self.index.read() as connection:
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
                cut=stored < size or stored >= self.cap_bytes,
            )
            for attempt, name, size, stored in rows
            if not is_events(name) and name != layout.MEDIA
        ]
        return sorted(logs, key=lambda log: (-log.attempt, _rank(log.name)))

    def read(self, attempt_id: str, name: str, offset: int = 0, limit: int = 1 << 20) -> LogText:
        """Read text from ``offset`` on: at most ``limit`` bytes, cut between characters."""
        if offset < 0 or limit < 1:
            raise UserError(
                f"offset is {offset} and limit is {limit}; they must be at least 0 and 1."
            )
        stream = self.streams.find(attempt_id, name)
        ended = not self.attempts.get(attempt_id).open
        data = self.streams.read(attempt_id, name, offset, max(limit, 4))
        begin, text, end = text_of(
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
        stream = self.streams.find(attempt_id, name)
        begin = tail_start(
            lambda offset, limit: self.replica.read(attempt_id, name, offset, limit),
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
        stream = self.streams.find(attempt_id, name)
        return search(
            lambda at, size: self.replica.read(attempt_id, name, at, size),
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


ReadBytes = Callable[[int, int], bytes]  # ``read(offset, limit)``.

TAIL_BYTES = 1 << 20
_STRIDE = 64 << 10
_SEARCH_STRIDE = 1 << 20
_LINE_SHOWN = 2000


@dataclass(frozen=True)
class LogMatch:
    offset: int  # The offset of the line's first byte, from which reading continues.
    text: str  # The line, at most 2,000 bytes of it.


def text_of(data: bytes, offset: int, *, whole: bool) -> tuple[int, str, int]:
    """Decode ``data`` to whole characters, with the offsets where the text begins and ends.

    A character that is cut at the end is left for the next read, unless ``data`` is the end of
    the log (``whole``). Bytes that are not UTF-8 become U+FFFD.
    """
    begin = 0
    while offset and begin < min(3, len(data)) and data[begin] & 0xC0 == 0x80:
        begin += 1
    decoder = codecs.getincrementaldecoder("utf-8")("replace")
    text = decoder.decode(data[begin:], final=whole)
    return offset + begin, text, offset + len(data) - len(decoder.getstate()[0])


def tail_start(read: ReadBytes, size: int, lines: int) -> int:
    """Return where the last ``lines`` lines begin; a torn last line counts."""
    if lines == 0:
        return size
    begin, found = size, 0
    first = max(0, size - TAIL_BYTES)
    while begin > first:
        step = max(first, begin - _STRIDE)
        data = read(step, begin - step)
        at = len(data)
        if begin == size and data.endswith(b"\n"):
            at -= 1  # This newline ends the last line; no line begins after it.
        while (at := data.rfind(b"\n", 0, at)) >= 0:
            found += 1
            if found == lines:
                return step + at + 1
        begin = step
    return first


def search(
    read: ReadBytes, size: int, text: str, *, offset: int, limit: int, stopped: Stopped = never
) -> list[LogMatch]:
    """Find whole lines from ``offset`` on that contain ``text``; ASCII case does not matter.

    ``stopped`` is asked between pieces; the lines found so far are returned then.
    """
    wanted = text.encode("utf-8", "replace").lower()
    found: list[LogMatch] = []
    at, carry = max(0, offset), b""
    while at < size and len(found) < limit and not stopped():
        data = read(at, min(_SEARCH_STRIDE, size - at))
        if not data:
            break
        at += len(data)
        chunk = carry + data
        begin = at - len(chunk)
        end = len(chunk) if at >= size else chunk.rfind(b"\n") + 1
        # A very long line is searched in parts, so that it need not fit in memory.
        if not end and len(chunk) > 4 * _SEARCH_STRIDE:
            end = len(chunk) - len(wanted) + 1
        whole, carry = chunk[:end], chunk[end:]
        found += _in_lines(whole, begin, wanted, limit - len(found))
    return found


def _in_lines(data: bytes, offset: int, wanted: bytes, limit: int) -> list[LogMatch]:
    found: list[LogMatch] = []
    lowered = data.lower()
    at = lowered.find(wanted)
    while at >= 0 and len(found) < limit:
        begin = data.rfind(b"\n", 0, at) + 1
        end = data.find(b"\n", at)
        end = len(data) if end < 0 else end
        line = data[begin : min(end, begin + _LINE_SHOWN)]
        found.append(LogMatch(offset + begin, line.decode("utf-8", "replace").rstrip("\r")))
        at = lowered.find(wanted, end)
    return found
