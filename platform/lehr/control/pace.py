"""How often workers and agents send: a busy server asks for fewer and larger requests.

Most of what a request costs the server does not depend on its size. So when thousands of workers
send every half second, it is better to ask each for one request every few seconds than to be late
with all answers. Nothing is lost: a training writes to its own files, and what has gathered there
is sent with the next request.
"""

from __future__ import annotations

from dataclasses import dataclass

HEARTBEAT_S = 2.0
STOPPING_HEARTBEAT_S = 1.0
"""While an attempt is stopping, so that each stop level arrives soon."""
SEND_S = 0.5
REPORT_S = 2.0
"""Between two reports of a node's agent: its attempts, its machine, its GPUs."""

HEARTBEATS_PER_S = 300.0
SENDS_PER_S = 600.0
REPORTS_PER_S = 150.0
"""Limits for all workers or nodes together. A worker has one stream with new data most of the
time: its events. ``tests/bench/live_attempts.py`` measures what this costs."""
LONGEST_S = 10.0
"""Half of the silence after which an attempt is shown as unreachable (``liveness.py``)."""


ACCEPTED_WAIT_S = 0.1
"""A wait for the server that doubles the pauses."""


@dataclass(frozen=True, slots=True)
class Pace:
    heartbeat_s: float = HEARTBEAT_S
    """Seconds between two heartbeats."""
    send_s: float = SEND_S
    """Seconds between two looks for new data to send."""


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
