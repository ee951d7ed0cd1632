"""Hostile lines: each kind of record with one invalid field."""

from __future__ import annotations

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
