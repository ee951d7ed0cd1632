"""Convert a run's events to rows of W&B's history. Pure except for reading the replica.

W&B numbers rows as they arrive and never removes one, so the sequence of a run's rows must always
be the same: attempts in order, each in the order of its stream. A row that a resume superseded is
left out if that is known when it is written.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pydantic import ValidationError

from lehr_trainer.contract.layout import EVENTS
from lehr_trainer.contract.records import (
    Evaluation,
    Metrics,
    Sample,
    Warning_,
    record_adapter,
)

STEP = "step"
"""The x axis of the rows: optimizer steps. W&B's own ``_step`` counts rows."""
_PIECE = 1 << 20


@dataclass(frozen=True)
class HistoryRow:
    """One row of history."""

    attempt: int
    step: int
    values: dict[str, Any]


@dataclass(frozen=True)
class ParsedRecords:
    """Another record of an attempt: a sample or a warning."""

    attempt: int
    record: Sample | Warning_


@dataclass(frozen=True)
class EventCounts:
    """A line of events: its result, and the offset of the next line."""

    attempt: int
    end: int
    what: HistoryRow | ParsedRecords | None


def read(replica: Path, run_id: str, attempt: int, start: int, end: int) -> Iterator[EventCounts]:
    """Yield the complete lines of an attempt's events from byte ``start`` to byte ``end``."""
    path = replica / f"{run_id}-{attempt}" / EVENTS
    if start >= end:
        return
    with path.open("rb") as file:
        file.seek(start)
        rest, at = b"", start
        while at + len(rest) < end:
            piece = file.read(min(_PIECE, end - at - len(rest)))
            if not piece:
                return
            *lines, rest = (rest + piece).split(b"\n")
            for line in lines:
                at += len(line) + 1
                yield EventCounts(attempt, at, parse(line, attempt))


def parse(line: bytes, attempt: int) -> HistoryRow | ParsedRecords | None:
    """Parse a line; None for records that W&B does not get, and for invalid lines."""
    try:
        record = record_adapter.validate_json(line)
    except ValidationError:
        return None
    if isinstance(record, Metrics | Evaluation):
        values = {
            STEP: record.step,
            "tokens": record.tokens,
            "attempt": attempt,
            "_timestamp": record.time,
            **record.values,
        }
        return HistoryRow(attempt, record.step, values)
    return ParsedRecords(attempt, record) if isinstance(record, Sample | Warning_) else None


def counts(what: HistoryRow | ParsedRecords, limits: dict[int, int]) -> bool:
    """Return whether it is not superseded: not after the last step of its attempt that counts."""
    step = what.step if isinstance(what, HistoryRow) else what.record.step
    limit = limits.get(what.attempt)
    return limit is None or (step or 0) <= limit
