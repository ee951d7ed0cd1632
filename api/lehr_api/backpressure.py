"""Limits for what waits to be written: workers' streams must not fill the server's memory."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable

from lehr.errors import LehrError
from lehr.store.streams.appender import Answer
from lehr_api.problems import Busy

Result = int | LehrError


class Intake:
    """Counts the pieces of streams that wait for the store, and rejects what is too much.

    The store writes all that wait in one transaction and answers them in one go, so no piece needs
    a thread of its own, and one call wakes the event loop for all. A rejected shipper keeps its
    bytes and sends them again, so backpressure only delays.
    """

    def __init__(self, *, pieces: int, size: int) -> None:
        self._most = pieces
        self._most_bytes = size
        self._pending = 0
        self._pending_bytes = 0
        self._guard = threading.Lock()
        self._answered: list[tuple[asyncio.Future[int], Result]] = []

    def check(self) -> None:
        """Raise Busy when one more would be too many."""
        if self._pending >= self._most or self._pending_bytes >= self._most_bytes:
            raise Busy(
                f"{self._pending} pieces of streams ({self._pending_bytes:,} bytes) wait to be "
                "written; send it again."
            )

    async def run(self, size: int, begin: Callable[[Answer], None]) -> int:
        """Call ``begin`` and wait until it answers; meanwhile its ``size`` bytes are counted.

        Raises:
            Busy: too much waits.
            LehrError: the answer is an error.
        """
        self.check()
        loop = asyncio.get_running_loop()
        waiting: asyncio.Future[int] = loop.create_future()

        def answer(result: Result) -> None:  # In the thread of the store.
            with self._guard:
                self._answered.append((waiting, result))
                first = len(self._answered) == 1
            if first:
                try:
                    loop.call_soon_threadsafe(self._hand_out)
                except RuntimeError:  # The loop is closed, so nobody waits any more.
                    self._answered.clear()

        self._pending += 1
        self._pending_bytes += size
        try:
            begin(answer)
            return await waiting
        finally:
            self._pending -= 1
            self._pending_bytes -= size

    def _hand_out(self) -> None:
        with self._guard:
            answered, self._answered = self._answered, []
        for waiting, result in answered:
            if waiting.done():  # Its client has gone.
                continue
            if isinstance(result, int):
                waiting.set_result(result)
            else:
                waiting.set_exception(result)
