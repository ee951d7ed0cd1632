"""Three kinds of silence: unreachable, stalled, dead. This tells the first two.

Dead is decided by ``reconcile``, from what agents and Ray say, never from silence alone: a
partition that heals must find its training run alive.
"""

from __future__ import annotations

import itertools
import statistics
from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum


class Liveness(StrEnum):
    NONE = "none"
    UNREACHABLE = "unreachable"
    """No heartbeat for a while: shown, not failed."""
    STALLED = "stalled"
    """It heartbeats, but its steps have stopped."""


@dataclass(frozen=True, slots=True)
class Thresholds:
    unreachable_s: float = 20.0
    stalled_factor: float = 10.0
    """Times the median step."""
    stalled_floor_s: float = 180.0
    """Saves, evaluations and recompilations take this long in good health."""


def liveness(
    *,
    since_contact_s: float,
    since_step_s: float | None,
    median_step_s: float | None,
    thresholds: Thresholds = Thresholds(),
) -> Liveness:
    """How an attempt is silent.

    Args:
        since_contact_s: seconds since its last heartbeat, or since its dispatch if none came yet.
        since_step_s: seconds since its step number last grew; None before its first step.
        median_step_s: its usual time per step; None when too few are known.
        thresholds: the limits.
    """
    if since_contact_s > thresholds.unreachable_s:
        return Liveness.UNREACHABLE
    if since_step_s is None or median_step_s is None:
        return Liveness.NONE
    limit = max(thresholds.stalled_floor_s, thresholds.stalled_factor * median_step_s)
    return Liveness.STALLED if since_step_s > limit else Liveness.NONE


def median_step_s(history: Sequence[tuple[float, int]]) -> float | None:
    """Median seconds per step from (time, step) pairs, oldest first; None from fewer than three."""
    rates = [
        (later - earlier) / (after - before)
        for (earlier, before), (later, after) in itertools.pairwise(history)
        if after > before
    ]
    return statistics.median(rates) if len(rates) >= 2 else None
