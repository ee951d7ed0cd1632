"""Scalars of TensorBoard event files, and the history of W&B offline files (``run-<id>.wandb``).

Both are decoded by the messages of the tool's own package. A TensorBoard file is a sequence of
TFRecords: length (uint64), its checksum, data, its checksum. Checksums are not verified; a length
that cannot be right ends the file. The package's own reader verifies them in Python, which takes
five times as long, for files that are read again while a program writes them.

A W&B file is a LevelDB log (https://github.com/google/leveldb/blob/main/doc/log_format.md) behind
seven bytes. The package reads such files in its Go core only.
"""

from __future__ import annotations

import contextlib
import json
import math
import struct
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from lehr.analysis.curve_files.collector import CurveRow, Points, Remark, needs, unreadable
from lehr_trainer.files import open_regular

TENSORBOARD = "*tfevents*"
LARGEST_EVENT = 512 * 2**20  # Bytes of an event; a graph may be large.
_FLOAT, _DOUBLE = 1, 2


def tensorboard_points(paths: list[Path]) -> Points:
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
                length = (
                    struct.unpack("<Q", header[:8])[0] if len(header) == 12 else LARGEST_EVENT + 1
                )
                data = file.read(length) if length <= min(LARGEST_EVENT, size) else b""
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


WANDB = "*.wandb"
MAGIC = b":W&B"
_BLOCK, _FILE_HEADER, _RECORD_HEADER = 32_768, 7, 7
_FULL, _LAST = 1, 4


def files_below(folder: Path, pattern: str, tool: str, *, together: bool) -> list[Path]:
    """Return the files of the only run below a folder; none if there is none.

    ``together``: a run has all files of one folder, else one file.

    Raises:
        UserError: there are several runs.
    """
    found = sorted(folder.rglob(pattern))
    runs = sorted({path.parent if together else path for path in found})
    if len(runs) > 1:
        names = ", ".join(str(run.relative_to(folder)) for run in runs[:6])
        raise unreadable(folder, f"it has {len(runs)} {tool} runs: {names}.", "Name one.")
    return found


def wandb_points(path: Path) -> Points:
    """Yield the history of the run. The step of a row is the metric that the program declared as
    the step of all others (``define_metric("*", step_metric=...)``), else W&B's own count.

    Raises:
        UserError: wandb is not installed, or the file is none of W&B's.
    """
    try:
        from wandb.proto import wandb_internal_pb2 as pb
    except ImportError:
        raise needs(path, "wandb") from None
    from google.protobuf.message import DecodeError

    count = 0
    declared: list[str] = []
    for data in records(path):
        record = pb.Record()
        try:
            record.ParseFromString(data)
        except DecodeError:
            yield Remark(f"{path.name} is damaged after {count:,} records.")
            return
        count += 1
        kind = record.WhichOneof("record_type")
        if kind == "metric" and record.metric.glob_name == "*" and record.metric.step_metric:
            declared.append(record.metric.step_metric)
        if kind != "history":
            continue
        values = _values(record.history)
        counted = values.pop("_step", None)
        steps = [*(values.get(name) for name in declared), counted, record.history.step.num]
        step = next(step for step in steps if step is not None and math.isfinite(step))
        if values:
            yield CurveRow(int(step), values, f"record {count:,}")


def _values(history: Any) -> dict[str, float]:
    """Return the numbers of a row; texts, tables and pictures are left out."""
    found = {}
    for item in history.item:
        # OverflowError: a whole number of hundreds of digits.
        with contextlib.suppress(ValueError, RecursionError, OverflowError):
            value = json.loads(item.value_json)
            if type(value) in {int, float} or value in ("NaN", "Infinity", "-Infinity"):
                found["/".join([item.key] if item.key else item.nested_key)] = float(value)
    return found


def records(path: Path) -> Iterator[bytes]:
    """Yield each record as bytes, as far as the file goes.

    Raises:
        UserError: the file is none of W&B's.
    """
    with open_regular(path, follow=True) as file:
        if not file.read(_FILE_HEADER).startswith(MAGIC):
            raise unreadable(path, "it is no W&B offline file.")
        at, record = _FILE_HEADER, b""
        while True:
            left = _BLOCK - at % _BLOCK
            if left < _RECORD_HEADER:
                file.seek(left, 1)
                at += left
                continue
            header = file.read(_RECORD_HEADER)
            if len(header) < _RECORD_HEADER:
                return
            _, length, kind = struct.unpack("<IHB", header)
            at += _RECORD_HEADER
            if kind == 0:
                # The rest of the block is padding.
                file.seek(left - _RECORD_HEADER, 1)
                at += left - _RECORD_HEADER
                continue
            data = file.read(length)
            at += length
            if len(data) < length:
                return
            record = data if kind in {_FULL, 2} else record + data
            if kind in {_FULL, _LAST}:
                yield record
                record = b""
