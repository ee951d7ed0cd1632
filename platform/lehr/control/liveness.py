"""How often workers send, and whether an attempt is ok, unreachable or stalled."""

from __future__ import annotations

import itertools
import statistics
from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum


class Liveness(StrEnum):
    OK = "ok"
    UNREACHABLE = "unreachable"  # No heartbeat for a while: shown, not failed.
    STALLED = "stalled"  # Heartbeats arrive, but no new steps.


UNREACHABLE_S = 20.0
SILENT_S = 600.0  # The same for a process that Lehr did not start: nobody but itself reports it.
STALLED_FACTOR = 10.0  # Multiple of the median step time.
STALLED_FLOOR_S = 180.0  # A normal save, evaluation or recompilation may take this long.


def liveness(
    *,
    since_contact_s: float,
    since_step_s: float | None,
    median_step_s: float | None,
    unreachable_s: float = UNREACHABLE_S,
) -> Liveness:
    """Return the liveness of an attempt.

    Args:
        since_contact_s: seconds since its last heartbeat, or since its dispatch if none came yet.
        since_step_s: seconds since its step number last grew; None before its first step.
        median_step_s: its usual time per step; None when too few are known.
        unreachable_s: how long it may be silent.
    """
    if since_contact_s > unreachable_s:
        return Liveness.UNREACHABLE
    if since_step_s is None or median_step_s is None:
        return Liveness.OK
    limit = max(STALLED_FLOOR_S, STALLED_FACTOR * median_step_s)
    return Liveness.STALLED if since_step_s > limit else Liveness.OK


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


HEARTBEAT_S = 2.0
STOPPING_HEARTBEAT_S = 1.0  # While an attempt is stopping, so that each stop level arrives soon.
SEND_S = 0.5
REPORT_S = 2.0  # Between two reports of a node's agent: its attempts, its machine, its GPUs.

HEARTBEATS_PER_S = 300.0
SENDS_PER_S = 600.0
REPORTS_PER_S = 150.0
"""Limits for all workers or nodes together. A worker has one stream with new data most of the
time: its events. ``tests/bench/live_attempts.py`` measures what this costs."""
LONGEST_S = 10.0
"""Half of the silence after which an attempt is shown as unreachable (``liveness.py``)."""


ACCEPTED_WAIT_S = 0.1  # A wait for the server that doubles the pauses.


@dataclass(frozen=True, slots=True)
class Pace:
    heartbeat_s: float = HEARTBEAT_S  # Seconds between two heartbeats.
    send_s: float = SEND_S  # Seconds between two looks for new data to send.


def pace(senders: int) -> Pace:
    """Return how often each of this many workers should send."""
    return Pace(
        heartbeat_s=min(max(HEARTBEAT_S, senders / HEARTBEATS_PER_S), LONGEST_S),
        send_s=min(max(SEND_S, senders / SENDS_PER_S), LONGEST_S),
    )


def stretched(pause_s: float, waited_s: float) -> float:
    """Return the pause to ask for when requests wait so long for the server to begin with them.

    The limits above suit a whole, fast core. Where the server has less, this finds its pace.
    """
    return min(pause_s * (1 + waited_s / ACCEPTED_WAIT_S), LONGEST_S)


STOPPING = Pace(heartbeat_s=STOPPING_HEARTBEAT_S)


def report_s(nodes: int) -> float:
    """Return the seconds between two reports of each of this many nodes' agents."""
    return min(max(REPORT_S, nodes / REPORTS_PER_S), LONGEST_S)
