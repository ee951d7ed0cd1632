"""Heartbeats of living attempts, in memory, between two writes to the store.

Uses monotonic clocks. A restarted server starts empty and counts every attempt as just seen.
"""

from __future__ import annotations

import math
import threading
import time
from collections import deque
from collections.abc import Callable, Collection, Iterable, Sequence
from dataclasses import dataclass, field

from lehr.control.liveness import UNREACHABLE_S, Liveness, liveness, median_step_s
from lehr.control.reconcile import OpenAttempt, Starts, StopLevel

GATHER_S = 0.02
"""Wait this long after a change, so that changes that come together are handled together."""


class Alarm:
    """A moment on a monotonic clock, for which one thread waits."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._earlier = threading.Condition()
        self._due = math.inf

    @property
    def due(self) -> float:
        """Return when it is due, on its clock; infinite if it is not set."""
        with self._earlier:
            return self._due

    def within(self, seconds: float) -> None:
        """Be due in so many seconds, unless it is due earlier anyway. Fast."""
        due = self._clock() + max(0.0, seconds)
        with self._earlier:
            if due < self._due:
                self._due = due
                self._earlier.notify_all()

    def clear(self) -> None:
        """Forget the moment. What is set from now on counts for the next tick."""
        with self._earlier:
            self._due = math.inf

    def wait(self) -> None:
        """Return when it is due."""
        with self._earlier:
            while (left := self._due - self._clock()) > 0:
                self._earlier.wait(None if math.isinf(left) else left)


_HISTORY = 32


@dataclass(slots=True)
class Heartbeat:
    first_known: float
    last_heartbeat: float | None = None
    node_heartbeats: dict[int, float] = field(default_factory=dict)
    """Time of the last heartbeat of each node's part, by node rank."""
    at: float | None = None  # Wall-clock time of the last heartbeat.
    unwritten: tuple[float, int | None] | None = None
    """Wall-clock time and step of the newest heartbeat that is not in the store yet."""
    elapsed_s: float | None = None  # Seconds since its start, by its node's clock.
    steps: deque[tuple[float, int]] = field(default_factory=lambda: deque(maxlen=_HISTORY))
    """(time, step) of heartbeats with a new step."""
    copied_at: float = 0.0  # When a heartbeat last said that a checkpoint is being copied.
    request_since: float | None = None  # When it first got an order to stop.
    ended_since: float | None = None  # When it was first seen as ended.
    stop_level: tuple[StopLevel, str] | None = None
    in_flight: int = 0  # Start calls without an answer yet.
    started_on: set[str] = field(default_factory=set)  # Nodes whose agent has confirmed the start.
    rejected_starts: int = 0
    rejection: tuple[str, str] | None = None  # Why the start was rejected last, and by which node.
    start_failed: float | None = None  # When a start call failed last.
    start_impossible: Exception | None = None  # Why its launch spec cannot be written.


class HeartbeatTable:
    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._guard = threading.Lock()
        self._heartbeats: dict[str, Heartbeat] = {}

    def now(self) -> float:
        return self._clock()

    def of(self, attempt_id: str) -> Heartbeat:
        """Return what is known of the attempt, to add to it."""
        with self._guard:
            found = self._heartbeats.get(attempt_id)
            if found is None:
                found = self._heartbeats[attempt_id] = Heartbeat(self._clock())
            return found

    def follow(self, attempts: Iterable[OpenAttempt], unreadable: Collection[str] = ()) -> None:
        """Begin the clocks of these attempts that are due to run, and forget all other attempts.

        Called once a tick: reading begins no clock. ``unreadable``: attempts to keep as they are.
        """
        known = {attempt.id: attempt for attempt in attempts}
        now = self._clock()
        with self._guard:
            for attempt_id in self._heartbeats.keys() - known.keys() - set(unreadable):
                del self._heartbeats[attempt_id]
            for attempt_id, attempt in known.items():
                heartbeat = self._heartbeats.get(attempt_id)
                if heartbeat is None:
                    heartbeat = self._heartbeats[attempt_id] = Heartbeat(now)
                if attempt.asked_to_stop and heartbeat.request_since is None:
                    heartbeat.request_since = now
                if attempt.ended and heartbeat.ended_since is None:
                    heartbeat.ended_since = now

    def heartbeat(
        self,
        attempt_id: str,
        *,
        step: int | None,
        elapsed_s: float | None,
        copying: bool = False,
        node_rank: int | None = None,
        at: float | None = None,
    ) -> None:
        """Note a heartbeat. ``at``: the wall-clock time to record."""
        heartbeat = self.of(attempt_id)
        now = self._clock()
        with self._guard:
            heartbeat.last_heartbeat = now
            if at is not None:
                heartbeat.at, heartbeat.unwritten = at, (at, step)
            if node_rank is not None:
                heartbeat.node_heartbeats[node_rank] = now
            heartbeat.elapsed_s = elapsed_s if elapsed_s is not None else heartbeat.elapsed_s
            if step is not None and (not heartbeat.steps or step > heartbeat.steps[-1][1]):
                heartbeat.steps.append((now, step))
            if copying:
                heartbeat.copied_at = now

    def take_unwritten(self) -> dict[str, tuple[float, int | None]]:
        """Return wall-clock time and step of each heartbeat that is not in the store yet."""
        with self._guard:
            found = {}
            for attempt_id, heartbeat in self._heartbeats.items():
                if heartbeat.unwritten is not None:
                    found[attempt_id], heartbeat.unwritten = heartbeat.unwritten, None
            return found

    def elapsed_s(self, attempt_id: str) -> float:
        """Return seconds since the attempt's start; before its first heartbeat, since it was first
        seen: times in the database jump with the machine's clock.
        """
        heartbeat = self.seen(attempt_id)
        if heartbeat.elapsed_s is None:
            return self._clock() - heartbeat.first_known
        return heartbeat.elapsed_s

    def silent_s(self, attempt_id: str, nodes: Sequence[str]) -> dict[str, float]:
        """Return by node the seconds since its part's last heartbeat. ``nodes``: by node rank."""
        heartbeat = self.seen(attempt_id)
        now = self._clock()
        with self._guard:
            return {
                name: now - heartbeat.node_heartbeats.get(rank, heartbeat.first_known)
                for rank, name in enumerate(nodes)
            }

    def starts(self, attempt_id: str) -> Starts:
        heartbeat = self.seen(attempt_id)
        why, node = heartbeat.rejection or ("", None)
        failed = heartbeat.start_failed
        return Starts(
            heartbeat.rejected_starts,
            why,
            node,
            None if failed is None else self._clock() - failed,
            heartbeat.start_impossible,
        )

    def since_request_s(self, attempt_id: str) -> float:
        since = self.seen(attempt_id).request_since
        return self._clock() - since if since is not None else 0.0

    def since_ended_s(self, attempt_id: str) -> float:
        since = self.seen(attempt_id).ended_since
        return self._clock() - since if since is not None else 0.0

    def since_contact_s(self, attempt_id: str) -> float:
        heartbeat = self.seen(attempt_id)
        last = heartbeat.last_heartbeat
        return self._clock() - (heartbeat.first_known if last is None else last)

    def since_step_s(self, attempt_id: str) -> float | None:
        """Return seconds since the last new step or copy of a checkpoint; None before a step."""
        heartbeat = self.seen(attempt_id)
        with self._guard:
            if not heartbeat.steps:
                return None
            return self._clock() - max(heartbeat.steps[-1][0], heartbeat.copied_at)

    def step_s(self, attempt_id: str) -> float | None:
        heartbeat = self.seen(attempt_id)
        with self._guard:
            return median_step_s(list(heartbeat.steps))

    def liveness(self, attempt_id: str, unreachable_s: float = UNREACHABLE_S) -> Liveness:
        return liveness(
            unreachable_s=unreachable_s,
            since_contact_s=self.since_contact_s(attempt_id),
            since_step_s=self.since_step_s(attempt_id),
            median_step_s=self.step_s(attempt_id),
        )

    def seen(self, attempt_id: str) -> Heartbeat:
        """Return what is known of the attempt; one that is unknown is seen just now."""
        with self._guard:
            return self._heartbeats.get(attempt_id) or Heartbeat(self._clock())
