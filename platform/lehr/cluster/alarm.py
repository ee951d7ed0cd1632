"""``Alarm``: when the next tick is due. Any thread may bring it forward."""

from __future__ import annotations

import math
import threading
import time
from collections.abc import Callable

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
