"""Threads of their own for what would take them all: requests of workers, and long reads."""

from __future__ import annotations

import asyncio
import functools
import threading
from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING, ParamSpec, TypeVar

from anyio import CapacityLimiter, to_thread
from anyio.lowlevel import RunVar

if TYPE_CHECKING:
    from starlette.requests import Request

P = ParamSpec("P")
T = TypeVar("T")
Stopped = Callable[[], bool]
THREADS = 16
"""For workers. All other requests share AnyIO's 40."""
LONG_READS = 4
"""For what reads for seconds: searches of logs, exports, comparisons, reports."""
VERIFICATIONS = 2
"""For whole checkpoints. Each reads as fast as its storage."""
_limiters: RunVar[dict[int, CapacityLimiter]] = RunVar("limiters")


def _limiter(threads: int) -> CapacityLimiter:
    """Return the limiter of this event loop with so many threads."""
    found = _limiters.get(None)
    if found is None:
        found = {}
        _limiters.set(found)
    return found.setdefault(threads, CapacityLimiter(threads))


def _in_threads(threads: int, handler: Callable[P, T]) -> Callable[P, Awaitable[T]]:
    @functools.wraps(handler)
    async def run(*args: P.args, **options: P.kwargs) -> T:
        act = functools.partial(handler, *args, **options)
        return await to_thread.run_sync(act, limiter=_limiter(threads))

    return run


def in_worker_threads(handler: Callable[P, T]) -> Callable[P, Awaitable[T]]:
    """Run a route's handler in one of the threads of workers."""
    return _in_threads(THREADS, handler)


def in_long_reads(handler: Callable[P, T]) -> Callable[P, Awaitable[T]]:
    """Run a route's handler in one of the threads for long reads."""
    return _in_threads(LONG_READS, handler)


async def until_left(request: Request, threads: int, act: Callable[[Stopped], T]) -> T:
    """Run ``act`` in one of so many threads; its argument is true once nobody waits any more.

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
            limiter=_limiter(threads),
            abandon_on_cancel=True,
        )
    finally:
        left.set()
        watching.cancel()
