"""Scalars of TensorBoard event files, decoded by the messages of the tensorboard package.

A file is a sequence of TFRecords: length (uint64), its checksum, data, its checksum. Checksums are
not verified; a length that cannot be right ends the file. The package's own reader verifies them in
Python, which takes five times as long, for files that are read again while a program writes them.
"""

from __future__ import annotations

import struct
from pathlib import Path
from typing import Any

from lehr.analysis.curve_files.points import CurveRow, Points, Remark, needs, unreadable
from lehr_trainer.files import open_regular

PATTERN = "*tfevents*"
LARGEST = 512 * 2**20
"""Bytes of an event; a graph may be large."""
_FLOAT, _DOUBLE = 1, 2


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
        UserError: tensorboard is not installed, or a file is none of its.
    """
    try:
        from tensorboard.compat.proto.event_pb2 import Event
    except ImportError:
        raise needs(paths[0], "tensorboard") from None
    from google.protobuf.message import DecodeError

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
                events += 1
                try:
                    event = Event.FromString(data)
                except DecodeError:
                    raise unreadable(path, f"event {events:,} cannot be decoded.") from None
                scalars = ((value.tag, _scalar(value)) for value in event.summary.value)
                values = {tag: number for tag, number in scalars if number is not None}
                if values and event.step < 2**62:
                    place = f"event {events:,} of {path.name}"
                    yield CurveRow(event.step, values, place, event.wall_time or None)


def _scalar(value: Any) -> float | None:
    """Return the number of a summary, which may be a tensor with one element; None of others."""
    kind, tensor = value.WhichOneof("value"), value.tensor
    if kind == "simple_value":
        return float(value.simple_value)
    if kind != "tensor" or tensor.dtype not in {_FLOAT, _DOUBLE}:
        return None
    if tensor.tensor_content:
        form = "<f" if tensor.dtype == _FLOAT else "<d"
        one = len(tensor.tensor_content) == struct.calcsize(form)
        return float(struct.unpack(form, tensor.tensor_content)[0]) if one else None
    elements = tensor.float_val if tensor.dtype == _FLOAT else tensor.double_val
    return float(elements[0]) if len(elements) == 1 else None
