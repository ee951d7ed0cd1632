"""What a trainer's records say of its run, as a list of runs shows it."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any, Self

from lehr_trainer.contract.records import Notice, Started, Warning_


@dataclass(frozen=True)
class TrainerSummary:
    """The parts of a trainer's records that a list shows."""

    device: str | None = None
    parameters: int | None = None
    warnings: tuple[str, ...] = ()
    """The newest of each kind of warning."""
    held_out: str | None = None
    """What an evaluation scores."""
    notice: str | None = None
    """What it does before its first step: prepares data, compiles."""

    @classmethod
    def of(cls, records: Iterable[Any]) -> Self:
        """Return the summary of records of one attempt, in their order."""
        device: str | None = None
        parameters: int | None = None
        held_out: str | None = None
        warnings: dict[str, str] = {}
        notice: str | None = None
        for record in records:
            if isinstance(record, Started):
                device = record.device
                parameters = record.parameters or None
                held_out = record.held_out
            elif isinstance(record, Warning_):
                warnings[record.code] = record.message
            elif isinstance(record, Notice):
                share = f" ({record.done:.0%})" if record.done is not None else ""
                notice = f"{record.message}{share}"
        return cls(device, parameters, tuple(warnings.values()), held_out, notice)
