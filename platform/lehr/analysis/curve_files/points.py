"""What the readers of curve files yield."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import NamedTuple

from lehr.errors import UserError
from lehr_trainer.extras import install


class CurveRow(NamedTuple):
    """The values that a file has for one step. A tuple, since there may be millions."""

    step: int
    values: dict[str, float]
    """By the name that the file uses."""
    place: int | str
    """Where it is in the file: a line's number, or e.g. "record 17"."""
    at: float | None = None
    """When it was logged, in seconds since 1970, if the file has that beside the values."""


@dataclass(frozen=True)
class Resumption:
    """Training resumed after ``step``: later points of earlier attempts are superseded."""

    step: int


@dataclass(frozen=True)
class RunFacts:
    """What a file contains about its run besides curves; None where it does not."""

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


def needs(path: object, package: str) -> UserError:
    """Return the error of a file that only a missing package can decode."""
    return unreadable(
        path,
        f"reading it needs the {package} package, which is not installed.",
        f"{install(f'lehr[{package}]')}, or export the run as CSV",
    )
