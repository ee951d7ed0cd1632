"""Logs as text: whole characters, the last lines, search. Pure functions."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from lehr.stopped import Stopped, never

ReadBytes = Callable[[int, int], bytes]
"""``read(offset, limit)``."""

TAIL_BYTES = 1 << 20
_STRIDE = 64 << 10
_SEARCH_STRIDE = 1 << 20
_LINE_SHOWN = 2000


@dataclass(frozen=True)
class LogMatch:
    offset: int
    """The offset of the line's first byte, from which reading continues."""
    text: str
    """The line, at most 2,000 bytes of it."""


def text_of(data: bytes, offset: int, *, whole: bool) -> tuple[int, str, int]:
    """Decode ``data`` to whole characters, with the offsets where the text begins and ends.

    A character that is cut at the end is left for the next read, unless ``data`` is the end of
    the log (``whole``). Bytes that are not UTF-8 become U+FFFD.
    """
    begin = 0
    while offset and begin < min(3, len(data)) and data[begin] & 0xC0 == 0x80:
        begin += 1
    end = len(data) if whole else len(data) - _cut(data)
    return offset + begin, data[begin:end].decode("utf-8", "replace"), offset + end


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
    read: ReadBytes,
    size: int,
    text: str,
    *,
    offset: int,
    limit: int,
    stopped: Stopped = never,
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


def _cut(data: bytes) -> int:
    """Return how many bytes at the end are the beginning of an incomplete character."""
    for back in range(1, min(3, len(data)) + 1):
        byte = data[-back]
        if byte & 0xC0 == 0x80:
            continue
        needed = 4 if byte >= 0xF0 else 3 if byte >= 0xE0 else 2 if byte >= 0xC0 else 1
        return back if needed > back else 0
    return 0
