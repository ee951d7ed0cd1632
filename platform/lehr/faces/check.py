"""A finding of a check: what was found, and how to fix it. Rules that several checks share."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from lehr.base import formats

Status = Literal["ok", "note", "bad"]
_GB = 10**9
CLOCK_NOTE_S = 2.0
CLOCK_BAD_S = 60.0


@dataclass(frozen=True)
class Check:
    name: str
    status: Status
    found: str
    fix: str | None = None


def space(free: int, where: str) -> Check:
    """Return the check of a disk's free bytes. ``where``: e.g. "for runs in /mnt/runs"."""
    text = f"{formats.size(free)} free {where}"
    if free < _GB:
        return Check("disk", "bad", text, "Free some space: a checkpoint would not fit.")
    if free < 20 * _GB:
        fix = "A checkpoint of a 1B model takes 15 GB, and two are kept."
        return Check("disk", "note", text, fix)
    return Check("disk", "ok", text)


def clock(offset_s: float) -> Check:
    """Return the check of a machine's clock, which is so many seconds ahead of the server's."""
    if abs(offset_s) <= CLOCK_NOTE_S:
        return Check("clock", "ok", "agrees with the server's")
    ahead = "ahead of" if offset_s > 0 else "behind"
    return Check(
        "clock",
        "bad" if abs(offset_s) > CLOCK_BAD_S else "note",
        f"its clock is {abs(offset_s):.0f} s {ahead} the server's",
        "Set it by NTP on both machines: timedatectl set-ntp true",
    )
