"""Parse lines of ``events.jsonl`` for the index. Pure; no line makes it raise.

Chunks may be cut anywhere between lines: the result does not depend on where.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import Any, get_args

import orjson
from pydantic import ValidationError

from lehr_trainer.contract import layout
from lehr_trainer.contract.records import (
    LATEST,
    MOST,
    AnyRecord,
    Checkpoint,
    CheckpointRemoved,
    Evaluation,
    Resumed,
    record_adapter,
)

NON_FINITE = {"NaN": math.nan, "Infinity": math.inf, "-Infinity": -math.inf}
_MAX_NAME = 200
_KNOWN = frozenset(
    record.model_fields["kind"].default for record in get_args(get_args(AnyRecord)[0])
)


@dataclass(frozen=True, slots=True)
class Line:
    """A record that is not ``metrics``, and its offset in the stream."""

    offset: int
    end: int
    kind: str
    time: float
    body: bytes


@dataclass(slots=True)
class Parsed:
    lines: list[Line] = field(default_factory=list)
    values: dict[str, dict[int, float]] = field(default_factory=dict)
    """Values by metric, then step. The last value at the same step wins."""
    points: list[tuple[int, float | None, float]] = field(default_factory=list)
    """Step, tokens and time of each record with values, in order."""
    resumed: Resumed | None = None
    malformed: int = 0


def parse_lines(data: bytes, offset: int) -> Parsed:
    """Parse ``data``: whole lines that begin at ``offset`` of the stream."""
    parsed = Parsed()
    alike = _Alike()
    for text in data.split(b"\n")[:-1]:
        end = offset + len(text) + 1
        _parse_line(text, offset, end, parsed, alike)
        offset = end
    alike.flush(parsed)
    return parsed


class _Alike:
    """Consecutive metrics records with the same names, collected in columns; most are like this."""

    def __init__(self) -> None:
        self._names: list[str] = []
        self._steps: list[int] = []
        self._rows: list[Any] = []

    def add(self, step: int, values: dict[str, Any], parsed: Parsed) -> None:
        names = list(values)
        if names != self._names:
            self.flush(parsed)
            self._names = names
        self._steps.append(step)
        self._rows.append(values.values())

    def flush(self, parsed: Parsed) -> None:
        damaged: set[int] = set()
        for name, column in zip(self._names, zip(*self._rows, strict=True), strict=False):
            if not 0 < len(name) <= _MAX_NAME:
                damaged.update(range(len(column)))
                continue
            series = parsed.values.setdefault(name, {})
            if set(map(type, column)) == {float}:
                series.update(zip(self._steps, column, strict=True))
                continue
            for place, (step, given) in enumerate(zip(self._steps, column, strict=True)):
                value = _number(given)
                if value is None:
                    damaged.add(place)
                else:
                    series[step] = value
            if not series:
                del parsed.values[name]
        parsed.malformed += len(damaged)
        self._names, self._steps, self._rows = [], [], []


def _parse_line(text: bytes, offset: int, end: int, parsed: Parsed, alike: _Alike) -> None:
    try:
        record = orjson.loads(text)
    except orjson.JSONDecodeError:
        parsed.malformed += 1
        return
    if not isinstance(record, dict):
        parsed.malformed += 1
        return
    kind, at = record.get("kind"), _number(record.get("time"))
    if not isinstance(kind, str) or not kind or at is None or not 0 <= at < LATEST:
        parsed.malformed += 1
    elif kind == "metrics":
        step, values = record.get("step"), record.get("values")
        if type(step) is not int or not 0 <= step < MOST or type(values) is not dict:
            parsed.malformed += 1
            return
        tokens = _number(record.get("tokens"))
        if tokens is not None and not 0 <= tokens < MOST:
            parsed.malformed += 1
            return
        alike.add(step, values, parsed)
        parsed.points.append((step, tokens, at))
    elif kind in _KNOWN:
        alike.flush(parsed)
        _record(text, Line(offset, end, kind, at, text), parsed)
    else:
        # The kind is of a newer trainer; the record is kept for a newer reader.
        parsed.lines.append(Line(offset, end, kind[:_MAX_NAME], at, text))


def _record(text: bytes, line: Line, parsed: Parsed) -> None:
    try:
        record: AnyRecord = record_adapter.validate_json(text)
    except ValidationError:
        parsed.malformed += 1
        return
    if isinstance(record, Evaluation):
        for name, value in record.values.items():
            if 0 < len(name) <= _MAX_NAME:
                parsed.values.setdefault(name, {})[record.step] = value
        parsed.points.append((record.step, float(record.tokens), line.time))
    elif isinstance(record, Checkpoint | CheckpointRemoved):
        if layout.checkpoint_at(record.path) is None:
            parsed.malformed += 1
            return
    elif isinstance(record, Resumed):
        parsed.resumed = record
    parsed.lines.append(line)


def _number(value: Any) -> float | None:
    if type(value) is float:
        return value
    if type(value) is int:
        return float(value)
    return NON_FINITE.get(value) if type(value) is str else None
