"""ETags for GET: a client with the newest answer gets a 304 instead of a body."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Coroutine
from typing import TYPE_CHECKING, Any

from starlette.concurrency import run_in_threadpool
from starlette.responses import Response, StreamingResponse

from lehr_api.strict_query import StrictRoute

if TYPE_CHECKING:
    from starlette.requests import Request

_LARGE = 1 << 20
"""Bytes that take a millisecond to hash, in which the event loop would answer nobody."""


class TaggedRoute(StrictRoute):
    """Adds an ETag to every 200 of a GET, and answers ``If-None-Match`` with 304."""

    def get_route_handler(self) -> Callable[[Request], Coroutine[Any, Any, Response]]:
        handle = super().get_route_handler()
        if self.methods != {"GET"}:
            return handle

        async def handle_tagged(request: Request) -> Response:
            response = await handle(request)
            if response.status_code != 200 or isinstance(response, StreamingResponse):
                return response
            body = bytes(response.body)
            large = len(body) > _LARGE
            tag = await run_in_threadpool(_tag, body) if large else _tag(body)
            headers = {"ETag": tag, "Cache-Control": "private, no-cache"}
            if _matches(request.headers.get("if-none-match"), tag):
                return Response(status_code=304, headers=headers)
            response.headers.update(headers)
            return response

        return handle_tagged


def _tag(body: bytes) -> str:
    return f'"{hashlib.blake2b(body, digest_size=12).hexdigest()}"'


def _matches(asked: str | None, tag: str) -> bool:
    if asked is None:
        return False
    tags = [one.strip().removeprefix("W/") for one in asked.split(",")]
    return tag in tags or "*" in tags
