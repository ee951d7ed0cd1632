"""The transport of the asynchronous client: the same requests, sent by httpx's AsyncClient."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, TypeVar

from lehr.client.loop import wait_for
from lehr.client.transport import Transport

if TYPE_CHECKING:
    import httpx

T = TypeVar("T")


class AsyncTransport(Transport):
    """A transport for use inside ``lehr.client.loop.run``."""

    def sleep(self, seconds: float) -> None:
        import anyio

        wait_for(anyio.sleep(seconds))

    def _open(self, **settings: Any) -> Any:
        return _Http(**settings)


class _Http:
    """The part of ``httpx.Client`` that the transport uses."""

    def __init__(self, **settings: Any) -> None:
        import httpx

        self._client = httpx.AsyncClient(**settings)
        self.headers = self._client.headers
        self.timeout = self._client.timeout

    def request(self, *arguments: Any, **named: Any) -> httpx.Response:
        return wait_for(self._client.request(*arguments, **named))

    @contextmanager
    def stream(self, *arguments: Any, **named: Any) -> Iterator[_Answer]:
        opened = self._client.stream(*arguments, **named)
        answer = wait_for(opened.__aenter__())
        try:
            yield _Answer(answer)
        finally:
            wait_for(opened.__aexit__(None, None, None))

    def close(self) -> None:
        wait_for(self._client.aclose())


class _Answer:
    """The part of ``httpx.Response`` that the transport uses of a streamed answer."""

    def __init__(self, answer: httpx.Response) -> None:
        self._answer = answer
        self.status_code = answer.status_code
        self.is_success = answer.is_success

    def read(self) -> bytes:
        return wait_for(self._answer.aread())

    @property
    def content(self) -> bytes:
        return self._answer.content

    def iter_lines(self) -> Iterator[str]:
        return _each(self._answer.aiter_lines())

    def iter_bytes(self) -> Iterator[bytes]:
        return _each(self._answer.aiter_bytes())


def _each(items: AsyncIterator[T]) -> Iterator[T]:
    while True:
        try:
            item = wait_for(_next(items))
        except StopAsyncIteration:
            return
        yield item


async def _next(items: AsyncIterator[T]) -> T:
    return await anext(items)
