"""Colours of runs in figures: each run has the same colour everywhere.

Ten colours that colour-blind people can distinguish (none is a grey or near the red of failures,
and each has a contrast of 3:1 with the page). Runs of the same colour differ in their dashes. The
dashboard has the same rule in ``static/js/colour.js``; its unit tests measure the distances.
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
Dash = Literal["solid", "dash", "dashdot", "dot"]
DASHES: tuple[Dash, ...] = ("solid", "dash", "dashdot", "dot")


@dataclass(frozen=True)
class Stroke:
    colour: str
    dash: Dash


def slot(run_id: str) -> int:
    """Return a run's own colour: FNV-1a over its id."""
    value = 0x811C9DC5
    for byte in run_id.encode():
        value = ((value ^ byte) * 0x01000193) & 0xFFFFFFFF
    return value % COLOURS


def slots(run_ids: Iterable[str]) -> dict[str, int]:
    """Return a slot for each of the runs shown together: its own colour, with another dash if
    others have that colour. Their order does not matter; beyond four of a colour, dashes repeat.
    """
    taken = [0] * COLOURS
    given: dict[str, int] = {}
    for run_id in sorted(set(run_ids)):
        own = slot(run_id)
        given[run_id] = own + COLOURS * (taken[own] % len(DASHES))
        taken[own] += 1
    return given


def stroke(index: int) -> Stroke:
    return Stroke(PALETTE[index % COLOURS], DASHES[index // COLOURS % len(DASHES)])
