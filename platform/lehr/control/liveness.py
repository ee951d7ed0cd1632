"""Liveness of an attempt: ok, unreachable or stalled.

``reconcile`` decides that an attempt is dead, from reports of agents and Ray, never from silence
alone: after a network partition its training must still run.
"""

from __future__ import annotations

import itertools
import statistics
from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum


class Liveness(StrEnum):
    OK = "ok"
    UNREACHABLE = "unreachable"
    """No heartbeat for a while: shown, not failed."""
    STALLED = "stalled"
    """Heartbeats arrive, but no new steps."""


@dataclass(frozen=True, slots=True)
class Thresholds:
    unreachable_s: float = 20.0
    stalled_factor: float = 10.0
    """Multiple of the median step time."""
    stalled_floor_s: float = 180.0
    """A normal save, evaluation or recompilation may take this long."""


def liveness(
    *,
    since_contact_s: float,
    since_step_s: float | None,
    median_step_s: float | None,
    thresholds: Thresholds = Thresholds(),
) -> Liveness:
    """Return the liveness of an attempt.

    Args:
        since_contact_s: seconds since its last heartbeat, or since its dispatch if none came yet.
        since_step_s: seconds since its step number last grew; None before its first step.
        median_step_s: its usual time per step; None when too few are known.
        thresholds: the limits.
    """
    if since_contact_s > thresholds.unreachable_s:
        return Liveness.UNREACHABLE
    if since_step_s is None or median_step_s is None:
        return Liveness.OK
    limit = max(thresholds.stalled_floor_s, thresholds.stalled_factor * median_step_s)
    return Liveness.STALLED if since_step_s > limit else Liveness.OK


def stalled(
    *, limit_s: float | None, since_step_s: float | None, since_contact_s: float
) -> str | None:
    """Return why an attempt counts as stalled by its spec, if so.

    A step counter that stands still means something only while heartbeats arrive.

    Args:
        limit_s: ``stall_limit_s`` of its spec; None: it is never ended for that.
        since_step_s: seconds since its step number last grew; None before its first step.
        since_contact_s: seconds since its last heartbeat.
    """
    if limit_s is None or since_step_s is None or since_step_s <= limit_s:
        return None
    if since_contact_s > limit_s:
        return None
    return f"no step for {since_step_s:.0f} s: stall_limit_s is {limit_s:g}"


def median_step_s(history: Sequence[tuple[float, int]]) -> float | None:
    """Return median seconds per step from (time, step) pairs, oldest first; None from fewer than
    three.
    """
    rates = [
        (later - earlier) / (after - before)
        for (earlier, before), (later, after) in itertools.pairwise(history)
        if after > before
    ]
    return statistics.median(rates) if len(rates) >= 2 else None
