"""Synchronous code on an event loop, so that both clients are one code.

A call of the asynchronous client runs the synchronous client's method in a greenlet. Where that
would block (a request, a pause), the greenlet hands an awaitable to the coroutine around it and
goes on with its result; meanwhile the loop is free. No thread is involved. SQLAlchemy's asyncio
does the same.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from typing import Any, Final, TypeVar

from greenlet import getcurrent, greenlet

T = TypeVar("T")
_END: Final = object()


async def run(work: Callable[[], T]) -> T:
    """What ``work`` returns; it may call ``wait_for``."""
    child = greenlet(work)
    said: Any = child.switch()
    while not child.dead:
        try:
            value = await said
        except BaseException as error:  # noqa: BLE001 - cancellation too is the child's to see
            said = child.throw(error)
        else:
            said = child.switch(value)
    result: T = said
    return result


def wait_for(awaitable: Awaitable[T]) -> T:
    """The awaitable's result; for use inside of ``run`` only."""
    parent = getcurrent().parent
    assert parent is not None, "wait_for was called outside of run"
    result: T = parent.switch(awaitable)
    return result


async def iterate(make: Callable[[], Iterator[T]]) -> AsyncIterator[T]:
    """The items of an iterator whose steps may call ``wait_for``."""
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
