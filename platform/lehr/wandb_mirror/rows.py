"""What of a run's events becomes a row of W&B's history. Pure but for reading the replica.

W&B numbers rows as they come and never takes one back, so the sequence of a run's rows must be
the same whenever it is read: attempts in order, each in the order of its stream. A row that a
checkpoint's return superseded is left out where that is known when it is written.
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
"""The rows' x axis: optimizer steps. W&B's own ``_step`` counts rows."""
_PIECE = 1 << 20


@dataclass(frozen=True)
class HistoryRow:
    """One row of history."""

    attempt: int
    step: int
    values: dict[str, Any]


@dataclass(frozen=True)
class ParsedRecords:
    """Something else that an attempt said: a sample or a warning."""

    attempt: int
    record: Sample | Warning_


@dataclass(frozen=True)
class EventCounts:
    """A line of events: what came of it, and where the next one begins."""

    attempt: int
    end: int
    what: HistoryRow | ParsedRecords | None


def read(replica: Path, run_id: str, attempt: int, start: int, end: int) -> Iterator[EventCounts]:
    """The whole lines of an attempt's events from byte ``start`` on, before byte ``end``."""
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
                yield EventCounts(attempt, at, understand(line, attempt))


def understand(line: bytes, attempt: int) -> HistoryRow | ParsedRecords | None:
    """None for what is not for W&B, and for what is no record."""
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
    """Whether it is not superseded: at or before the last step of its attempt that counts."""
    step = what.step if isinstance(what, HistoryRow) else what.record.step
    limit = limits.get(what.attempt)
    return limit is None or (step or 0) <= limit
