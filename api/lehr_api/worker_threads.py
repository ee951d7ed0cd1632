"""Threads for the requests of workers. All other threads remain for people."""

from __future__ import annotations

import functools
from collections.abc import Awaitable, Callable
from typing import ParamSpec, TypeVar

from anyio import CapacityLimiter, to_thread
from anyio.lowlevel import RunVar

P = ParamSpec("P")
T = TypeVar("T")
THREADS = 16
_limiter: RunVar[CapacityLimiter] = RunVar("worker_threads")


def in_worker_threads(handler: Callable[P, T]) -> Callable[P, Awaitable[T]]:
    """Run a route's handler in one of the threads of workers."""

    @functools.wraps(handler)
    async def run(*args: P.args, **options: P.kwargs) -> T:
        limiter = _limiter.get(None)
        if limiter is None:
            limiter = CapacityLimiter(THREADS)
            _limiter.set(limiter)
        act = functools.partial(handler, *args, **options)
        return await to_thread.run_sync(act, limiter=limiter)

    return run
