"""Run synchronous code on an event loop, so that both clients share their code.

A call of the asynchronous client runs the synchronous client's method in a greenlet. Where that
would block (a request, a pause), the greenlet passes an awaitable to the coroutine around it and
continues with its result. Meanwhile the loop is free. No thread is involved. SQLAlchemy's asyncio
does the same.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from typing import Any, Final, TypeVar

from greenlet import getcurrent, greenlet

T = TypeVar("T")
_END: Final = object()


async def run(work: Callable[[], T]) -> T:
    """Run ``work`` and return its result; it may call ``wait_for``."""
    child = greenlet(work)
    pending: Any = child.switch()
    while not child.dead:
        try:
            value = await pending
        except BaseException as error:  # noqa: BLE001 - cancellation too is the child's to see
            pending = child.throw(error)
        else:
            pending = child.switch(value)
    result: T = pending
    return result


def wait_for(awaitable: Awaitable[T]) -> T:
    """Return the awaitable's result; only for use inside ``run``."""
    parent = getcurrent().parent
    assert parent is not None, "wait_for was called outside of run"
    result: T = parent.switch(awaitable)
    return result


async def iterate(make: Callable[[], Iterator[T]]) -> AsyncIterator[T]:
    """Iterate over an iterator whose steps may call ``wait_for``."""
    items = await run(make)
    try:
        while True:
            item: Any = await run(lambda: next(items, _END))
            if item is _END:
                return
            yield item
    finally:
        close = getattr(items, "close", None)
        if close is not None:
            await run(close)
