"""When the next decision is due although nothing happens: time limits that run out.

A tick is needed when something has changed, or when a duration passes a limit. Changes wake the
dispatcher. This module computes the other moment, so that no tick is needed before it.

Pure, and on the safe side: it may name a moment at which nothing turns out to be due, but ``step``
decides nothing new on an unchanged record before it. ``make simulate`` checks this on samples.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from lehr.control.availability import limits_s
from lehr.control.finalize import FINALIZE_WAIT_S
from lehr.control.lifecycle import RunState
from lehr.control.reconcile import (
    GANG_KILL_S,
    NodeSeen,
    OpenAttempt,
    Timeouts,
    pause_left_s,
    stop_limits_s,
)
from lehr.control.snapshot import Snapshot

AFTER_S = 0.001  # Limits are passed, not reached.
LEAST_S = 0.1  # Do not look more often than this at a limit.


def due_in_s(snapshot: Snapshot) -> float | None:
    """Return seconds until a limit may be passed; None if no limit is running."""
    left = min((one for one in _limits(snapshot) if one >= 0.0), default=None)
    return None if left is None else max(LEAST_S, left + AFTER_S)


def heartbeat_decides(
    *,
    running: bool,
    time_limit_s: float | None,
    elapsed_s: float | None,
    stall_limit_s: float | None,
    since_contact_s: float,
) -> bool:
    """Return whether a heartbeat may pass a limit. All others only postpone what is due.

    ``since_contact_s``: since the heartbeat before it.
    """
    if time_limit_s is not None and elapsed_s is not None and elapsed_s > time_limit_s:
        return running
    # Steps are counted as missing only while heartbeats arrive.
    return stall_limit_s is not None and since_contact_s > stall_limit_s


def _limits(snapshot: Snapshot) -> Iterator[float]:
    """Yield the seconds left of each limit; negative ones have passed."""
    seen = {node.name: node for node in snapshot.members}
    elapsed: dict[str, float] = {}
    for attempt in snapshot.attempts:
        yield from _of_attempt(
            attempt, seen, snapshot.timeouts, membership_known=snapshot.membership_known
        )
        if attempt.elapsed_s is not None:
            elapsed[attempt.id] = attempt.elapsed_s
    for run in snapshot.runs:
        # A heartbeat that passes the limit wakes the dispatcher. This is for an attempt without
        # heartbeats, whose time the server counts.
        newest = elapsed.get(f"{run.id}-{run.attempt}")
        if run.state is RunState.RUNNING and run.time_limit_s is not None and newest is not None:
            yield run.time_limit_s - newest
    for ended in snapshot.ended:
        if not ended.delivered:
            yield FINALIZE_WAIT_S - ended.since_exit_s
    waiting = [run.waiting for run in snapshot.runs if run.waiting is not None]
    yield from limits_s(snapshot.node_ends.values(), waiting)
    if waiting:
        yield snapshot.estimates_in_s
    for seconds in (snapshot.waiting_in_s, snapshot.sweeps_in_s):
        if seconds is not None:
            yield seconds


def _of_attempt(
    attempt: OpenAttempt,
    seen: Mapping[str, NodeSeen],
    timeouts: Timeouts,
    *,
    membership_known: bool,
) -> Iterator[float]:
    if attempt.in_flight:
        return
    nodes = [seen.get(name) for name in attempt.nodes]
    if attempt.ended:
        for limit in (
            timeouts.collect_s,
            timeouts.exit_grace_s,
            timeouts.gang_drain_s,
            timeouts.abandon_s,
            GANG_KILL_S,
        ):
            yield limit - attempt.since_ended_s
    if attempt.exited:
        return
    if not attempt.dispatched and (left := pause_left_s(attempt.starts)) > 0.0:
        yield left
    for name, node in zip(attempt.nodes, nodes, strict=True):
        if membership_known and (node is None or not node.alive):
            yield timeouts.lease_s - attempt.silent_nodes.get(name, attempt.since_contact_s)
    if not attempt.contacted:
        yield timeouts.first_heartbeat_s - attempt.since_contact_s
    if attempt.asked_to_stop:
        for limit in stop_limits_s(attempt, timeouts):
            yield limit - attempt.since_request_s
    if attempt.stall_limit_s is not None and attempt.since_step_s is not None:
        yield attempt.stall_limit_s - attempt.since_step_s
