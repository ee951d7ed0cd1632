"""Colours of runs in figures: each run has the same colour everywhere.

Ten colours that colour-blind people can distinguish (none is a grey or near the red of failures,
and each has a contrast of 3:1 with the page), and the same ten dashed. The dashboard has the same
rule in ``static/js/colour.js``; its unit tests measure the distances.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Literal

PALETTE = (
    "#6666bb",
    "#ee4488",
    "#005544",
    "#aa8866",
    "#cc66ee",
    "#0099aa",
    "#663311",
    "#113399",
    "#777744",
    "#994488",
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
