"""Checks before every route, mount and socket: host, origin, token, body size, headers.

Plain ASGI, so that nothing added to the app later bypasses it, and so that streamed answers are not
buffered.
"""

from __future__ import annotations

import logging
import time
from typing import TYPE_CHECKING

from starlette.datastructures import Headers, MutableHeaders

from lehr.errors import LehrError
from lehr_api import auth
from lehr_api.problems import TooLarge, error_response, unexpected_response

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    from starlette.types import ASGIApp, Message, Receive, Scope, Send

    from lehr_api.settings import Settings

_log = logging.getLogger("lehr.api")

HEADERS = {
    "Content-Security-Policy": "default-src 'none'; frame-ancestors 'none'",
    "X-Content-Type-Options": "nosniff",
    "X-Frame-Options": "DENY",
    "Referrer-Policy": "same-origin",
    "Cross-Origin-Opener-Policy": "same-origin",
    "Cross-Origin-Resource-Policy": "same-origin",
    "Cache-Control": "no-store",
}
"""Sent unless the answer has its own; the dashboard's pages have a policy that lets them run."""


class Guard:
    def __init__(
        self,
        app: ASGIApp,
        *,
        settings: Settings,
        attempt_token_sha256: Callable[[str], Awaitable[str | None]],
    ) -> None:
        self.app = app
        self._settings = settings
        self._keys = auth.Keys(settings.token)
        self._names = auth.own_names(settings)
        self._attempt_token_sha256 = attempt_token_sha256

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "lifespan":
            await self.app(scope, receive, send)
            return
        started = False

        async def send_guarded(message: Message) -> None:
            nonlocal started
            if message["type"] == "http.response.start":
                started = True
                headers = MutableHeaders(scope=message)
                for name, value in HEADERS.items():
                    headers.setdefault(name, value)
            await send(message)

        try:
            await self._check(scope)
            if scope["type"] == "http":
                receive = await self._limited(scope, receive)
            await self.app(scope, receive, send_guarded)
        except LehrError as error:
            if scope["type"] == "websocket":
                await send({"type": "websocket.close", "code": 1008, "reason": error.code})
                return
            await error_response(error)(scope, receive, send_guarded)
        except Exception:
            _log.exception("request failed: %s %s", scope.get("method"), scope["path"])
            if started or scope["type"] == "websocket":
                raise
            await unexpected_response()(scope, receive, send_guarded)

    async def _check(self, scope: Scope) -> None:
        headers = Headers(scope=scope)
        path: str = scope["path"]
        auth.check_host(headers, self._names, loopback=self._settings.loopback)
        auth.check_origin(headers, scope.get("method", "WEBSOCKET"))
        if auth.is_open(path):
            return
        if path in auth.NODE_PATHS and auth.check_node(headers, self._keys, now=time.time()):
            return
        attempt = auth.attempt_of(path)
        if attempt is None:
            auth.check_person(headers, self._keys)
        else:
            auth.check_attempt(headers, await self._attempt_token_sha256(attempt))

    async def _limited(self, scope: Scope, receive: Receive) -> Receive:
        """Return ``receive`` after checking that the body is within the limit.

        The HTTP server counts a body with a stated length; one without is read here.
        """
        is_chunk = auth.attempt_of(scope["path"]) is not None
        limit = self._settings.chunk_limit if is_chunk else self._settings.body_limit
        headers = Headers(scope=scope)
        if scope["method"] == "PUT" and auth.is_capsule(scope["path"]):
            # The route reads it in pieces and counts them.
            return receive
        stated = headers.get("content-length")
        if stated is not None:
            if not (stated.isascii() and stated.isdecimal()) or int(stated) > limit:
                raise _too_large(limit)
            return receive
        if "transfer-encoding" not in headers:
            return receive
        body = bytearray()
        more = True
        while more:
            message = await receive()
            if message["type"] != "http.request":
                return _replay(message, receive)
            body += message.get("body", b"")
            if len(body) > limit:
                raise _too_large(limit)
            more = message.get("more_body", False)
        return _replay({"type": "http.request", "body": bytes(body), "more_body": False}, receive)


def _replay(message: Message, receive: Receive) -> Receive:
    """Return a ``receive`` that yields ``message`` first, then the rest."""
    pending = [message]

    async def again() -> Message:
        return pending.pop() if pending else await receive()

    return again


def _too_large(limit: int) -> TooLarge:
    return TooLarge(f"the body is larger than {limit:,} bytes, the limit.")
