"""Write TensorBoard event files with Google's protobuf, by the field numbers of its .proto files."""

from __future__ import annotations

import struct
from functools import cache
from pathlib import Path
from typing import Any

from google.protobuf import descriptor_pb2, descriptor_pool, message_factory

_F = descriptor_pb2.FieldDescriptorProto
_MESSAGES = {
    # tensorflow/core/framework/tensor.proto, summary.proto and util/event.proto
    "Tensor": [("dtype", 1, _F.TYPE_INT32, None), ("tensor_content", 4, _F.TYPE_BYTES, None),
               ("float_val", 5, _F.TYPE_FLOAT, "repeated"), ("double_val", 6, _F.TYPE_DOUBLE, "repeated")],
    "Value": [("tag", 1, _F.TYPE_STRING, None), ("simple_value", 2, _F.TYPE_FLOAT, None),
              ("tensor", 8, ".tb.Tensor", None)],
    "Summary": [("value", 1, ".tb.Value", "repeated")],
    "Event": [("wall_time", 1, _F.TYPE_DOUBLE, None), ("step", 2, _F.TYPE_INT64, None),
              ("file_version", 3, _F.TYPE_STRING, None), ("summary", 5, ".tb.Summary", None)],
}  # fmt: skip


@cache
def _classes() -> dict[str, Any]:
    file = descriptor_pb2.FileDescriptorProto(name="tb.proto", package="tb", syntax="proto2")
    for name, fields in _MESSAGES.items():
        message = file.message_type.add(name=name)
        for field, number, kind, label in fields:
            added = message.field.add(name=field, number=number)
            added.label = _F.LABEL_REPEATED if label else _F.LABEL_OPTIONAL
            if isinstance(kind, str):
                added.type, added.type_name = _F.TYPE_MESSAGE, kind
            else:
                added.type = kind
    pool = descriptor_pool.DescriptorPool()
    pool.Add(file)
    return {
        name: message_factory.GetMessageClass(pool.FindMessageTypeByName(f"tb.{name}"))
        for name in _MESSAGES
    }


def scalar(step: int, **values: float) -> bytes:
    """An event as TensorFlow 1 and PyTorch write it; ``__`` stands for ``/``."""
    event = _classes()["Event"](wall_time=1.5, step=step)
    for tag, value in values.items():
        event.summary.value.add(tag=tag.replace("__", "/"), simple_value=value)
    return event.SerializeToString()


def tensor(
    step: int, tag: str, value: float, *, double: bool = False, content: bool = True
) -> bytes:
    """An event as TensorFlow 2 writes it: the scalar is a tensor."""
    event = _classes()["Event"](wall_time=1.5, step=step)
    one = event.summary.value.add(tag=tag).tensor
    one.dtype = 2 if double else 1
    if content:
        one.tensor_content = struct.pack("<d" if double else "<f", value)
    else:
        (one.double_val if double else one.float_val).append(value)
    return event.SerializeToString()


def version() -> bytes:
    return _classes()["Event"](wall_time=1.5, file_version="brain.Event:2").SerializeToString()


def write(path: Path, events: list[bytes]) -> Path:
    """Frame the events as TFRecords; the checksums are zero, as nothing reads them."""
    path.parent.mkdir(parents=True, exist_ok=True)
    frames = [struct.pack("<QI", len(event), 0) + event + bytes(4) for event in events]
    path.write_bytes(b"".join(frames))
    return path
