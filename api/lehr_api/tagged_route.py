"""The class of the routes: ETags for GET, and no unknown query parameters.

A client with the newest answer gets a 304 instead of a body. A filter that was ignored silently
would show everything.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Coroutine, Iterator
from typing import Any

from fastapi.dependencies.models import Dependant
from fastapi.routing import APIRoute
from starlette.concurrency import run_in_threadpool
from starlette.requests import Request
from starlette.responses import Response, StreamingResponse

from lehr.errors import UserError, nearest

_LARGE = 1 << 20
"""Bytes that take a millisecond to hash, in which the event loop would answer nobody."""


class TaggedRoute(APIRoute):
    """Answers 422 to an unknown query parameter, and suggests a similar one.

    Adds an ETag to every 200 of a GET, and answers ``If-None-Match`` with 304.
    """

    def get_route_handler(self) -> Callable[[Request], Coroutine[Any, Any, Response]]:
        handle = super().get_route_handler()
        known = list(dict.fromkeys(_query(self.dependant)))

        async def handle_tagged(request: Request) -> Response:
            for name in request.query_params:
                if name not in known:
                    raise _unknown(name, known)
            response = await handle(request)
            untagged = self.methods != {"GET"} or isinstance(response, StreamingResponse)
            if untagged or response.status_code != 200:
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


def _query(dependant: Dependant) -> Iterator[str]:
    yield from (parameter.alias for parameter in dependant.query_params)
    for inner in dependant.dependencies:
        yield from _query(inner)


def _unknown(name: str, known: list[str]) -> UserError:
    near = nearest(name, known)
    there_are = f"There are: {', '.join(known)}" if known else "This route takes none."
    shown = name if len(name) <= 80 else f"{name[:77]}..."
    return UserError(
        f"{shown} is not a query parameter of this route.",
        hint=f"Did you mean {near}?   {there_are}" if near else there_are,
    )
