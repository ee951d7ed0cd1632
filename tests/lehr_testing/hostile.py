"""Hostile messages of a worker: each kind of record, and of request, with invalid values."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any, get_args

from pydantic import BaseModel

from lehr_trainer.contract.records import AnyRecord

KINDS: dict[str, type[BaseModel]] = {
    model.model_fields["kind"].default: model for model in get_args(get_args(AnyRecord)[0])
}
VALUES = (
    "9223372036854775808",
    "-9223372036854775809",
    "18446744073709551616",
    "1" + "0" * 400,
    "-1" + "0" * 400,
    "7" * 5000,
    "1e400",
    "1e300",
    "-1",
    "1.5",
    "NaN",
    '"NaN"',
    "null",
    "true",
    '"text"',
    '"\\ud800"',
    '"a\\u0000b"',
    '"attempt-' + "9" * 5000 + '"',
    '"' + "x" * 100_000 + '"',
    "[]",
    "{}",
    '{"a": "\\udfff"}',
    '{"a": 9223372036854775808}',
    '{"a": ' + "7" * 5000 + "}",
    '[{"a": [1]}]',
    "[" * 150 + "]" * 150,
    '{"a":' * 5000 + "1" + "}" * 5000,
)
"""As JSON text: some of it is none."""


def fields(kind: str) -> dict[str, str]:
    """Return a valid record of this kind, each field as JSON text, by the schema of its model."""
    model = KINDS[kind]
    schema = model.model_json_schema()
    sound = {name: _sound(part) for name, part in schema["properties"].items()}
    return sound | {"kind": f'"{kind}"'}


def _sound(schema: dict[str, Any]) -> str:
    if "anyOf" in schema:
        return _sound(schema["anyOf"][0])
    if "enum" in schema:
        return f'"{schema["enum"][0]}"'
    if schema["type"] == "object":
        value = _sound(schema["additionalProperties"]) if _typed(schema) else "1"
        return f'{{"train/loss": {value}}}'
    return {
        "boolean": "true",
        "integer": "7",
        "number": "0.5",
        "string": '"attempt-1/checkpoints/step-00000007"',
        "array": '["text"]',
    }[schema["type"]]


def _typed(schema: dict[str, Any]) -> bool:
    return isinstance(schema.get("additionalProperties"), dict)


def line(parts: dict[str, str]) -> bytes:
    return ("{" + ", ".join(f'"{name}": {text}' for name, text in parts.items()) + "}\n").encode()


def lines(kind: str) -> Iterator[tuple[str, bytes]]:
    """Yield each field of this kind of record with each hostile value: a description, and the line."""
    sound = fields(kind)
    yield f"{kind}, sound", line(sound)
    for name in sound:
        for text in VALUES:
            yield f"{kind}.{name} = {text[:40]}", line(sound | {name: text})
        yield f"{kind} without {name}", line({k: v for k, v in sound.items() if k != name})


PATH = "attempt-1/checkpoints/step-00000005"
MESSAGES: dict[str, dict[str, Any]] = {
    "heartbeat": {
        "boot_id": "b",
        "pid": 1,
        "node_rank": 0,
        "sizes": {"events.jsonl": 1},
        "shorter": {"events.jsonl": 0},
        "copying": False,
        "launcher_alive": True,
        "step": 1,
        "elapsed_s": 1.0,
    },
    "exit": {
        "exit": {
            "code": 1,
            "signal": None,
            "started_at": 1_759_999_000.0,
            "ended_at": 1_760_000_000.0,
            "reason": "exited",
            "detail": "",
            "log_tail": "",
            "boot_id": "b",
            "finished": {"step": 3, "outcome": "failed", "cause": "error", "message": "so"},
        },
        "node_rank": 0,
        "sizes": {"events.jsonl": 0},
    },
    "copies": {"copies": [{"path": PATH, "url": "s3://b/x", "state": "there", "error": None}]},
}
"""A valid request of each kind, with every field of its schema."""
_MARK = "@here@"


def places(value: Any) -> Iterator[tuple[Any, ...]]:
    """Yield the path of every value in a message: containers, and what is in them."""
    yield ()
    if isinstance(value, dict | list):
        for key, inner in value.items() if isinstance(value, dict) else enumerate(value):
            for path in places(inner):
                yield (key, *path)


def message(value: Any, place: tuple[Any, ...], text: str) -> bytes:
    """Return the message as JSON, with the text in that place."""
    return json.dumps(_marked(value, place)).replace(f'"{_MARK}"', text).encode()


def _marked(value: Any, place: tuple[Any, ...]) -> Any:
    if not place:
        return _MARK
    key, *rest = place
    if isinstance(value, list):
        return [_marked(v, tuple(rest)) if n == key else v for n, v in enumerate(value)]
    return {k: _marked(v, tuple(rest)) if k == key else v for k, v in value.items()}


def messages(what: str) -> Iterator[tuple[str, bytes]]:
    """Yield each message with one hostile value in one place, and the name of both."""
    for place in places(MESSAGES[what]):
        for value in VALUES:
            yield f"{place} = {value[:40]}", message(MESSAGES[what], place, value)
