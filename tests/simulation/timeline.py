"""Virtual time: events in the order in which they are due."""

from __future__ import annotations

import hashlib
import heapq
from collections.abc import Callable

Act = Callable[[], object]


class Timeline:
    """A heap of events. Events of one moment run in the order in which they were planned."""

    def __init__(self) -> None:
        self.now = 0.0
        self.events = 0
        self._heap: list[tuple[float, int, str, Act]] = []
        self._planned = 0
        self._digest = hashlib.sha256()
        self.tail: list[str] = []  # The last events, to explain a violation.

    def after(self, seconds: float, what: str, act: Act) -> None:
        self._planned += 1
        heapq.heappush(self._heap, (self.now + max(seconds, 0.0), self._planned, what, act))

    def note(self, what: str) -> None:
        """Add a line to the history."""
        line = f"{self.now:.3f} {what}"
        self._digest.update(line.encode() + b"\n")
        self.tail.append(line)
        if len(self.tail) > 4000:
            del self.tail[:2000]

    def next(self) -> None:
        """Run the next event."""
        self.now, _, what, act = heapq.heappop(self._heap)
        self.events += 1
        self._digest.update(f"{self.now:.6f} {what}\n".encode())
        act()

    @property
    def digest(self) -> str:
        return self._digest.hexdigest()
