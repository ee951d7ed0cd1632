"""What the readers of curve files yield."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from lehr.errors import UserError


@dataclass(frozen=True)
class CurveRow:
    """The values that a file has for one step."""

    step: int
    values: dict[str, float]
    """By the name that the file uses."""
    place: str
    """Where it is in the file, e.g. "line 17"."""


@dataclass(frozen=True)
class Resumption:
    """Training resumed after ``step``: later points of earlier attempts are superseded."""

    step: int


@dataclass(frozen=True)
class RunFacts:
    """What a file knows of its run besides curves; None where it does not."""

    total_steps: int | None = None
    warmup_steps: int | None = None
    changes: tuple[int, ...] = ()


@dataclass(frozen=True)
class Remark:
    """Something that the reader skipped or assumed, as a sentence."""

    text: str


Point = CurveRow | Resumption | RunFacts | Remark
Points = Iterator[Point]


def unreadable(path: object, why: str, hint: str | None = None) -> UserError:
    return UserError(f"{path}: {why}", hint=hint)
