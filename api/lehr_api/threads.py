"""Threads of their own for what would take them all: requests of workers, and long reads."""

from __future__ import annotations

import asyncio
import functools
import threading
from collections.abc import Awaitable, Callable
from typing import ParamSpec, TypeVar

from anyio import CapacityLimiter, to_thread
from anyio.lowlevel import RunVar
from starlette.requests import Request

from lehr.base.stopped import Stopped

P = ParamSpec("P")
T = TypeVar("T")


class Pool:
    """Some threads of each event loop."""

    def __init__(self, name: str, threads: int) -> None:
        self.threads = threads
        self._limiter: RunVar[CapacityLimiter] = RunVar(name)

    def limiter(self) -> CapacityLimiter:
        """Return what limits the pool in this event loop."""
        found = self._limiter.get(None)
        if found is None:
            found = CapacityLimiter(self.threads)
            self._limiter.set(found)
        return found

    def runs(self, handler: Callable[P, T]) -> Callable[P, Awaitable[T]]:
        """Decorate the handler of a route: it runs in one of these threads."""

        @functools.wraps(handler)
        async def run(*args: P.args, **options: P.kwargs) -> T:
            act = functools.partial(handler, *args, **options)
            return await to_thread.run_sync(act, limiter=self.limiter())

        return run


WORKERS = Pool("workers", 16)
"""For requests of workers. All other requests share AnyIO's 40 threads."""
LONG_READS = Pool("long_reads", 4)
"""For what reads for seconds: searches of logs, exports, comparisons, reports."""
VERIFICATIONS = Pool("verifications", 2)
"""For whole checkpoints. Each reads as fast as its storage."""
SUBMISSIONS = Pool("submissions", 4)
"""For specs: a grid of 10,000 trials takes seconds of the processor, a look for data may, too."""


async def until_left(request: Request, pool: Pool, act: Callable[[Stopped], T]) -> T:
    """Run ``act`` in a thread of the pool; its argument is true once nobody waits any more.

    That is when the client has left, or the server stops.
    """
    left = threading.Event()

    async def watch() -> None:
        while (await request.receive())["type"] != "http.disconnect":
            pass  # A rest of its body.
        left.set()

    # No task group: it would wrap an error of ``act`` in a group.
    watching = asyncio.create_task(watch())
    try:
        return await to_thread.run_sync(
            functools.partial(act, left.is_set),
            limiter=pool.limiter(),
            abandon_on_cancel=True,
        )
    finally:
        left.set()
        watching.cancel()
