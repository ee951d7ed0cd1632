"""Estimates of how long attempts still take; the queue reserves GPUs that become free next."""

from __future__ import annotations

from lehr.cluster.heartbeats import HeartbeatTable
from lehr.store.tables import Attempt, RunRow

KEPT_S = (30.0, 600.0)
"""Least and most time for which estimates are kept. They move with each heartbeat; a plan of the
queue, and the reasons that it gives, should stay the same until something happens."""
PART = 1 / 20
"""They are kept for this part of the shortest: nobody plans for the minute in ten hours."""


class Estimates:
    """Used by the dispatcher's thread."""

    def __init__(self, heartbeats: HeartbeatTable) -> None:
        self._heartbeats = heartbeats
        self._made_at = heartbeats.now()
        self._known: dict[str, float | None] = {}
        self._shortest_s = 0.0
        """The shortest estimate, or time for which nothing is known of an attempt."""

    def refresh(self) -> None:
        """Forget the estimates if they are old."""
        if self.renewed_in_s() <= 0.0:
            self._made_at = self._heartbeats.now()
            self._known.clear()
            self._shortest_s = float("inf")

    def renewed_in_s(self) -> float:
        """Return the seconds until they are made again."""
        least, most = KEPT_S
        kept = min(most, max(least, PART * self._shortest_s))
        return max(0.0, self._made_at + kept - self._heartbeats.now())

    def remaining_s(self, attempt: Attempt, run: RunRow | None) -> float | None:
        """Return the seconds until the attempt completes; None if unknown."""
        if run is None:
            return None
        if attempt.id not in self._known:
            found = self._known[attempt.id] = self._estimate(attempt.id, run)
            age = self._heartbeats.elapsed_s(attempt.id)
            self._shortest_s = min(self._shortest_s, age if found is None else found)
        return self._known[attempt.id]

    def _estimate(self, attempt_id: str, run: RunRow) -> float | None:
        step, step_s = self._heartbeats.last_step(attempt_id), self._heartbeats.step_s(attempt_id)
        if step is None or step_s is None:
            return None
        try:
            steps = run.stored.total_steps
        except (ArithmeticError, AttributeError, LookupError, TypeError, ValueError):
            # One spec that cannot be read must not stop the tick of all runs.
            return None
        return None if steps is None else max(0.0, (steps - step) * step_s)
