"""Colours of runs in figures: each run has the same colour everywhere.

Ten colours that colour-blind people can distinguish (after Petroff 2021; none is near the red of
failures, and each has a contrast of 3:1 with the page), and the same ten dashed. The
dashboard has the same rule in ``static/js/colour.js``; a browser test compares the two.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Literal

PALETTE = (
    "#3f90da",
    "#c27c00",
    "#c2307f",
    "#7d8f8d",
    "#832db6",
    "#a96b59",
    "#e76300",
    "#9a8d4a",
    "#5d6773",
    "#2f8f93",
)
COLOURS = len(PALETTE)


@dataclass(frozen=True)
class Stroke:
    colour: str
    dash: Literal["solid", "dash"]


def slot(run_id: str) -> int:
    """Return a run's own colour: FNV-1a over its id."""
    value = 0x811C9DC5
    for byte in run_id.encode():
        value = ((value ^ byte) * 0x01000193) & 0xFFFFFFFF
    return value % COLOURS


def slots(run_ids: Iterable[str]) -> dict[str, int]:
    """Return a slot for each of the runs shown together: its own, or the next free one.

    The second ten are the same colours dashed; beyond twenty they repeat.
    """
    given: dict[str, int] = {}
    taken: set[int] = set()
    for i, run_id in enumerate(run_ids):
        if i % COLOURS == 0:
            taken = set()
        at = slot(run_id)
        while at in taken:
            at = (at + 1) % COLOURS
        taken.add(at)
        given[run_id] = at + COLOURS * (i // COLOURS % 2)
    return given


def stroke(index: int) -> Stroke:
    return Stroke(PALETTE[index % COLOURS], "dash" if index // COLOURS % 2 else "solid")
