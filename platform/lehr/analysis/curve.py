"""Curve of a metric, as analyses read it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass


@dataclass(frozen=True)
class Curve:
    """A metric by step, ascending; values may be NaN or infinite."""

    steps: Sequence[int]
    values: Sequence[float]
    superseded: tuple[Curve, ...] = ()
    """Points of earlier attempts at steps that later ones repeated, where they were read."""

    def __len__(self) -> int:
        return len(self.steps)
