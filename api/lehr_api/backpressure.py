"""Limits for concurrent writes: workers' streams must not delay users' requests."""

from __future__ import annotations

from typing import TYPE_CHECKING, TypeVar

from anyio import CapacityLimiter, to_thread

from lehr_api.problems import Busy

if TYPE_CHECKING:
    from collections.abc import Callable

T = TypeVar("T")


class Intake:
    """Runs appends in their own threads; rejects them when too many wait.

    A rejected shipper keeps its bytes and sends them again, so backpressure only delays.
    """

    def __init__(self, *, at_once: int, waiting: int) -> None:
        self._at_once = at_once
        self._most = at_once + waiting
        self._pending = 0
        self._limiter: CapacityLimiter | None = None

    def check(self) -> None:
        """Raise Busy when one more would be too many."""
        if self._pending >= self._most:
            raise Busy(f"{self._pending} pieces of streams wait to be written; send it again.")

    async def run(self, append: Callable[[], T]) -> T:
        self.check()
        if self._limiter is None:  # Created late: it belongs to the running event loop.
            self._limiter = CapacityLimiter(self._at_once)
        self._pending += 1
        try:
            return await to_thread.run_sync(append, limiter=self._limiter)
        finally:
            self._pending -= 1
