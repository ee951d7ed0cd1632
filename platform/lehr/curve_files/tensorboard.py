"""Scalars of TensorBoard event files, read without TensorFlow.

A file is a sequence of TFRecords: length (uint64), its checksum, data, its checksum. The data is an
``Event`` of tensorflow/core/util/event.proto, of which the step and scalar summaries are read.
Checksums are not verified; a length that cannot be right ends the file.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from lehr.curve_files.points import CurveRow, Points, Remark, unreadable
from lehr_trainer.files import open_regular

PATTERN = "*tfevents*"
LARGEST = 512 * 2**20
"""Bytes of an event; a graph may be large."""
_FLOAT, _DOUBLE = 1, 2
_TIME, _STEP, _SUMMARY = 1, 2, 5  # of Event
_VALUE = 1  # of Summary
_TAG, _SIMPLE, _TENSOR = 1, 2, 8  # of Summary.Value
_DTYPE, _CONTENT, _FLOATS, _DOUBLES = 1, 4, 5, 6  # of TensorProto


def files_of(folder: Path) -> list[Path]:
    """Return the event files of one run below a folder, oldest first.

    Raises:
        UserError: there are several runs.
    """
    found = sorted(folder.rglob(PATTERN))
    runs = sorted({path.parent for path in found})
    if len(runs) > 1:
        names = ", ".join(str(run.relative_to(folder)) for run in runs[:6])
        raise unreadable(folder, f"it has {len(runs)} TensorBoard runs: {names}.", "Name one.")
    return found


def points(paths: list[Path]) -> Points:
    """Yield the scalars of the files of one run.

    Raises:
        UserError: a file is none of TensorBoard's.
    """
    for path in paths:
        events = 0
        with open_regular(path, follow=True) as file:
            size = path.stat().st_size
            while header := file.read(12):
                length = struct.unpack("<Q", header[:8])[0] if len(header) == 12 else LARGEST + 1
                data = file.read(length) if length <= min(LARGEST, size) else b""
                if len(data) != length or len(file.read(4)) != 4:
                    if not events:
                        raise unreadable(path, "it is no TensorBoard event file.")
                    yield Remark(f"{path.name} ends within a record, after {events:,} events.")
                    break
                try:
                    row = _row(data, f"event {events + 1:,} of {path.name}")
                except (ValueError, struct.error, UnicodeDecodeError):
                    raise unreadable(path, f"event {events + 1:,} cannot be decoded.") from None
                events += 1
                if row is not None:
                    yield row


def _row(event: bytes, place: str) -> CurveRow | None:
    at, step, values = None, 0, {}
    for field, value in fields(event):
        if field == _TIME and isinstance(value, bytes):
            at = float(struct.unpack("<d", value)[0])
        elif field == _STEP and isinstance(value, int):
            step = value
        elif field == _SUMMARY and isinstance(value, bytes):
            for inner, one in fields(value):
                if inner == _VALUE and isinstance(one, bytes):
                    tag, number = _scalar(one)
                    if number is not None:
                        values[tag] = number
    if step >= 2**62:
        raise ValueError(step)
    return CurveRow(step, values, place, at) if values else None


def _scalar(value: bytes) -> tuple[str, float | None]:
    tag, number = "", None
    for field, one in fields(value):
        if field == _TAG and isinstance(one, bytes):
            tag = one.decode()
        elif field == _SIMPLE and isinstance(one, bytes):
            number = struct.unpack("<f", one)[0]
        elif field == _TENSOR and isinstance(one, bytes):
            number = _tensor(one)
    return tag, number


def _tensor(tensor: bytes) -> float | None:
    """Return the only element of a float or double tensor; None of any other."""
    parts: dict[int, Any] = dict(fields(tensor))
    form = {_FLOAT: "<f", _DOUBLE: "<d"}.get(parts.get(_DTYPE, 0))
    if form is None:
        return None
    raw = parts.get(_CONTENT) or parts.get(_FLOATS if form == "<f" else _DOUBLES)
    if not isinstance(raw, bytes) or len(raw) != struct.calcsize(form):
        return None
    return float(struct.unpack(form, raw)[0])


def fields(message: bytes) -> Iterator[tuple[int, int | bytes]]:
    """Yield number and value of a protobuf message's fields: an int of a varint, else the bytes.

    Raises:
        ValueError: the message is torn, or uses groups.
    """
    at = 0
    while at < len(message):
        key, at = _varint(message, at)
        kind = key & 7
        if kind == 0:
            value, at = _varint(message, at)
            yield key >> 3, value
            continue
        if kind == 2:
            size, at = _varint(message, at)
        elif kind in {1, 5}:
            size = 8 if kind == 1 else 4
        else:
            raise ValueError(f"wire type {kind}")
        if at + size > len(message):
            raise ValueError("a field is longer than its message")
        yield key >> 3, message[at : at + size]
        at += size


def _varint(message: bytes, at: int) -> tuple[int, int]:
    value = shift = 0
    while True:
        if at >= len(message) or shift > 63:
            raise ValueError("a number is torn")
        byte = message[at]
        value |= (byte & 0x7F) << shift
        at += 1
        if not byte & 0x80:
            return value, at
        shift += 7
