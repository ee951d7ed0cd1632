"""One node's figures over time, in a file whose size never changes.

The file has three rings of rows: 10 s for an hour, 1 min for a day, 15 min for 90 days. A row is a
slot of time with the mean of each figure in it. Each new figure is folded into the row of its slot
in every ring, so a restart loses nothing and nothing has to be thinned out later. A row that a
power cut tears is one wrong point.
"""

from __future__ import annotations

import json
import math
import os
import struct
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

_HEAD = 8192
_MOST_COLUMNS = 160
"""Nine of the host and four for each of up to 37 GPUs; more are left out."""


_SLACK = 1.05
"""The last hour is still that when it is read some seconds later."""


@dataclass(frozen=True)
class Level:
    step_s: int
    slots: int

    @property
    def span_s(self) -> int:
        return self.step_s * self.slots


LEVELS = (Level(10, 360), Level(60, 1440), Level(900, 8640))


@dataclass(frozen=True)
class RingSpan:
    """Figures at regular times."""

    step_s: float
    times: list[float]
    """Begin of each slot."""
    columns: dict[str, list[float | None]]
    """By name; None where nothing was measured."""


class Ring:
    def __init__(self, path: Path) -> None:
        self._path = path

    def add(self, at: float, figures: Mapping[str, float]) -> None:
        """Fold figures measured at a time into their slots."""
        columns = self._columns()
        if not set(figures) <= set(columns):
            columns = self._widen(columns, figures)
        row = _Row(columns)
        descriptor = os.open(self._path, os.O_RDWR)
        try:
            start = _HEAD
            for level in LEVELS:
                slot = int(at // level.step_s)
                place = start + (slot % level.slots) * row.size
                packed = row.folded(os.pread(descriptor, row.size, place), slot, figures)
                os.pwrite(descriptor, packed, place)
                start += level.slots * row.size
        finally:
            os.close(descriptor)

    def read(self, first: float, last: float, *, now: float, points: int) -> RingSpan:
        """Return the span at the finest resolution that reaches back to ``first``.

        ``points``: the most slots to return; neighbours are averaged until they are no more.
        """
        number = next(
            (n for n, level in enumerate(LEVELS) if now - first <= level.span_s * _SLACK),
            len(LEVELS) - 1,
        )
        level = LEVELS[number]
        columns = self._columns()
        begin = int(max(first, now - level.span_s) // level.step_s)
        slots = range(begin, int(min(last, now) // level.step_s) + 1)
        found = self._rows(number, columns) if columns and slots else {}
        factor = max(1, math.ceil(len(slots) / points))
        groups = [slots[i : i + factor] for i in range(0, len(slots), factor)]
        return RingSpan(
            step_s=level.step_s * factor,
            times=[float(group[0] * level.step_s) for group in groups],
            columns={
                name: [_mean([found[one][i] for one in group if one in found]) for group in groups]
                for i, name in enumerate(columns)
            },
        )

    def _rows(self, number: int, columns: Sequence[str]) -> dict[int, tuple[float, ...]]:
        row = _Row(columns)
        start = _HEAD + sum(level.slots for level in LEVELS[:number]) * row.size
        with self._path.open("rb") as file:
            file.seek(start)
            data = file.read(LEVELS[number].slots * row.size)
        whole = len(data) - len(data) % row.size
        return {slot: values for slot, _, *values in row.all(data[:whole]) if slot}  # type: ignore[misc]

    def _columns(self) -> tuple[str, ...]:
        """Return the columns of the file; none if it is missing or damaged."""
        try:
            with self._path.open("rb") as file:
                head = file.read(_HEAD)
            return tuple(json.loads(head.rstrip(b"\0"))["columns"])
        except (FileNotFoundError, ValueError, KeyError, TypeError):
            return ()

    def _widen(self, known: Sequence[str], figures: Mapping[str, float]) -> tuple[str, ...]:
        """Write the file again with more columns, and with the rows that it has."""
        columns = (*known, *(name for name in figures if name not in known))[:_MOST_COLUMNS]
        row, before = _Row(columns), _Row(known)
        head = json.dumps({"columns": columns}, separators=(",", ":")).encode()
        if len(head) > _HEAD:
            return tuple(known)
        gap = struct.pack(
            f"<{len(columns) - len(known)}f", *[math.nan] * (len(columns) - len(known))
        )
        draft = self._path.with_suffix(".draft")
        with draft.open("wb") as file:
            file.write(head.ljust(_HEAD, b"\0"))
            file.truncate(_HEAD + sum(level.slots for level in LEVELS) * row.size)
            for number, level in enumerate(LEVELS):
                start = _HEAD + sum(one.slots for one in LEVELS[:number]) * row.size
                for slot, values in (self._rows(number, known) if known else {}).items():
                    file.seek(start + (slot % level.slots) * row.size)
                    file.write(before.packed(slot, 1, values) + gap)
        draft.replace(self._path)
        return columns


class _Row:
    """A row: its slot, how often it was folded, and its means."""

    def __init__(self, columns: Sequence[str]) -> None:
        self._columns = columns
        self._form = struct.Struct(f"<qI{len(columns)}f")
        self.size = self._form.size

    def packed(self, slot: int, count: int, values: Sequence[float]) -> bytes:
        return self._form.pack(slot, count, *values)

    def all(self, data: bytes) -> list[tuple[float, ...]]:
        return list(self._form.iter_unpack(data))

    def folded(self, old: bytes, slot: int, figures: Mapping[str, float]) -> bytes:
        """Return the row with the figures in it; a row of an earlier slot is begun again."""
        count, values = 0, [math.nan] * len(self._columns)
        if len(old) == self.size:
            was, had, *means = self._form.unpack(old)
            if was == slot:
                count, values = had, means
        for i, name in enumerate(self._columns):
            figure = figures.get(name, math.nan)
            if math.isfinite(figure):
                known = math.isfinite(values[i])
                values[i] = values[i] + (figure - values[i]) / (count + 1) if known else figure
        return self.packed(slot, count + 1, values)


def _mean(values: Sequence[float]) -> float | None:
    finite = [value for value in values if math.isfinite(value)]
    return sum(finite) / len(finite) if finite else None
