"""Write TensorBoard event files."""

from __future__ import annotations

import struct
from pathlib import Path

from tensorboard.compat.proto.event_pb2 import Event


def scalar(step: int, **values: float) -> bytes:
    """An event as TensorFlow 1 and PyTorch write it; ``__`` stands for ``/``."""
    event = Event(wall_time=1.5, step=step)
    for tag, value in values.items():
        event.summary.value.add(tag=tag.replace("__", "/"), simple_value=value)
    return event.SerializeToString()


def tensor(
    step: int, tag: str, value: float, *, double: bool = False, content: bool = True
) -> bytes:
    """An event as TensorFlow 2 writes it: the scalar is a tensor."""
    event = Event(wall_time=1.5, step=step)
    one = event.summary.value.add(tag=tag).tensor
    one.dtype = 2 if double else 1
    if content:
        one.tensor_content = struct.pack("<d" if double else "<f", value)
    else:
        (one.double_val if double else one.float_val).append(value)
    return event.SerializeToString()


def version() -> bytes:
    return Event(wall_time=1.5, file_version="brain.Event:2").SerializeToString()


def write(path: Path, events: list[bytes]) -> Path:
    """Frame the events as TFRecords; the checksums are zero, as nothing reads them."""
    path.parent.mkdir(parents=True, exist_ok=True)
    frames = [struct.pack("<QI", len(event), 0) + event + bytes(4) for event in events]
    path.write_bytes(b"".join(frames))
    return path
