"""Decide on the checkpoints of a run: which one is resumed, and whether an attempt has progressed.

Pure: values in, values out.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Protocol

from lehr_trainer.contract import layout


class SavedPoint(Protocol):
    """A checkpoint of a run."""

    @property
    def attempt(self) -> int:
        """Return the number of the attempt that saved it."""

    @property
    def step(self) -> int:
        """Return the step at which it was saved."""

    @property
    def path(self) -> str:
        """Return its path, relative to the run directory."""


def point_to_resume(points: Iterable[SavedPoint], base: str | None) -> str | None:
    """Return the checkpoint that the next attempt resumes from, relative to the run directory or
    absolute.

    It is the newest checkpoint of the newest attempt. If that attempt fell back to an older
    checkpoint, the newer ones were damaged.

    Args:
        points: the run's own checkpoints that can still be read.
        base: what it starts from if it has none: a fork's checkpoint of another run, or None.
    """
    found = [point for point in points if layout.checkpoint_at(point.path) is not None]
    if not found:
        return base
    return max(found, key=lambda point: (point.attempt, point.step)).path


def has_progressed(points: Iterable[SavedPoint], attempt: int) -> bool:
    """Return whether the attempt has saved a newer checkpoint than all attempts before it."""
    own = earlier = -1
    for point in points:
        if point.attempt == attempt:
            own = max(own, point.step)
        elif point.attempt < attempt:
            earlier = max(earlier, point.step)
    return own > earlier
