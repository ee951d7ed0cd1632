"""Turns of workers' requests: on a busy server, people's requests come first."""

from __future__ import annotations

import asyncio
from collections import deque
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from starlette.types import ASGIApp, Message, Receive, Scope, Send

AT_ONCE = 64
"""Workers' requests that begin in one pass of the event loop, which then looks for new ones."""
BESIDE_PEOPLE = 8
PAUSE_S = 0.05
"""While a person waits, only so many begin in so long, so that the thread that makes the answer
gets Python's lock. Workers still get 160 requests a second, however many people ask."""
LONGEST_S = 5.0
"""A person counts as waiting for so long: a stalled upload must not slow all workers for ever."""
SMOOTH_S = 2.0
"""Time over which waiting is averaged."""
_MOST_WEIGHT = 0.1
"""Weight of one wait in the mean, on a server with few requests."""


class Turns:
    """Used only in the event loop's thread."""

    def __init__(self) -> None:
        self.waited_s = 0.0
        """Mean time that workers' requests wait for their turn; 0 unless there are too many."""
        self._averaged_at = 0.0
        self._people = 0
        self._left = AT_ONCE
        self._waiting: deque[asyncio.Future[None]] = deque()
        self._next: asyncio.Handle | None = None

    async def wait(self) -> None:
        """Return when a worker's request may begin. The first to come is the first to begin."""
        loop = asyncio.get_running_loop()
        began = loop.time()
        waited_s = 0.0
        if self._left:
            self._left -= 1
            self._begin_later()
        else:
            turn = loop.create_future()
            self._waiting.append(turn)
            await turn
            waited_s = loop.time() - began
        since_s, self._averaged_at = loop.time() - self._averaged_at, loop.time()
        self.waited_s += (waited_s - self.waited_s) * min(since_s / SMOOTH_S, _MOST_WEIGHT)

    async def answer_person(self, app: ASGIApp, scope: Scope, receive: Receive, send: Send) -> None:
        """Call ``app``; a person waits until its answer begins. An event stream begins at once."""
        waiting = 1

        def begun() -> None:
            nonlocal waiting
            self._people -= waiting
            waiting = 0

        async def send_answer(message: Message) -> None:
            begun()
            await send(message)

        self._people += 1
        limit = asyncio.get_running_loop().call_later(LONGEST_S, begun)
        try:
            await app(scope, receive, send_answer)
        finally:
            limit.cancel()
            begun()

    def _begin_later(self) -> None:
        if self._next is None:
            pause_s = PAUSE_S if self._people else 0
            self._next = asyncio.get_running_loop().call_later(pause_s, self._begin)

    def _begin(self) -> None:
        self._next = None
        self._left = most = BESIDE_PEOPLE if self._people else AT_ONCE
        while self._waiting and self._left:
            turn = self._waiting.popleft()
            if not turn.done():  # The server stops.
                turn.set_result(None)
                self._left -= 1
        if self._left < most:
            self._begin_later()
