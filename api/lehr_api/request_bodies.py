"""Limits for the size of a request's body, by the path and before it is read.

Slow and countless connections are left to a proxy (docs/operations.md).
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from starlette.datastructures import Headers

from lehr_api import auth
from lehr_api.problems import TooLarge

if TYPE_CHECKING:
    from starlette.types import Message, Receive, Scope

    from lehr_api.settings import Settings

OPEN_LIMIT = 16 << 10
"""Bytes of a body for a path that needs no token: the form of the login."""


def limited(scope: Scope, receive: Receive, settings: Settings) -> Receive:
    """Return a ``receive`` for the request, which raises TooLarge.

    Raises:
        TooLarge: the stated length is above the limit.
    """
    limit = _limit(scope, settings)
    if limit is None:
        return receive
    stated = Headers(scope=scope).get("content-length")
    if stated is not None:
        # The HTTP server counts a body with a stated length.
        if not (stated.isascii() and stated.isdecimal()) or int(stated) > limit:
            raise _too_large(limit)
        return receive
    size = 0

    async def counted() -> Message:
        nonlocal size
        message = await receive()
        size += len(message.get("body", b""))
        if size > limit:
            raise _too_large(limit)
        return message

    return counted


def _limit(scope: Scope, settings: Settings) -> int | None:
    """Return the limit in bytes; None for a route that reads in pieces and counts them."""
    path = scope["path"]
    if auth.is_open(path):
        return OPEN_LIMIT
    if auth.attempt_of(path) is not None:
        return settings.chunk_limit
    if scope["method"] == "PUT" and auth.is_capsule(path):
        return None
    return settings.body_limit


def _too_large(limit: int) -> TooLarge:
    return TooLarge(f"the body is larger than {limit:,} bytes, the limit.")
