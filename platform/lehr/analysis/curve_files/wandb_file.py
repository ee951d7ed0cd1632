"""History of W&B offline files, ``run-<id>.wandb``.

The file is a LevelDB log (https://github.com/google/leveldb/blob/main/doc/log_format.md) behind
seven bytes; its records are protobuf messages that the wandb package defines. The package reads
such files in its Go core only.
"""

from __future__ import annotations

import contextlib
import json
import math
import struct
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from lehr.analysis.curve_files.points import CurveRow, Points, Remark, needs, unreadable
from lehr_trainer.files import open_regular

MAGIC = b":W&B"
_BLOCK, _FILE_HEADER, _RECORD_HEADER = 32_768, 7, 7
_FULL, _LAST = 1, 4


def files_of(folder: Path) -> list[Path]:
    """Return the only offline file below a folder; none if there is none.

    Raises:
        UserError: there are several.
    """
    found = sorted(folder.rglob("*.wandb"))
    if len(found) > 1:
        names = ", ".join(str(path.relative_to(folder)) for path in found[:6])
        raise unreadable(folder, f"it has {len(found)} W&B runs: {names}.", "Name one.")
    return found


def points(path: Path) -> Points:
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
        try:
            value = json.loads(item.value_json)
        except (ValueError, RecursionError):
            continue
        if value in {"NaN", "Infinity", "-Infinity"} if isinstance(value, str) else False:
            value = float(value)
        if isinstance(value, (int, float)) and not isinstance(value, bool):
            name = "/".join([item.key] if item.key else item.nested_key)
            with contextlib.suppress(OverflowError):  # A whole number of hundreds of digits.
                found[name] = float(value)
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
