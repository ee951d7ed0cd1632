"""Limits for a request's body: its size, the time that it may take, how many are on the way.

A body is in memory until it is whole. Without these limits a client that sends all but the last
byte, and then waits, would keep it there for as long as it likes.
"""

from __future__ import annotations

import contextlib
import time
from collections import Counter
from typing import TYPE_CHECKING

import anyio
from starlette.datastructures import Headers

from lehr_api import auth
from lehr_api.problems import Busy, SlowBody, TooLarge

if TYPE_CHECKING:
    from collections.abc import Iterator

    from starlette.types import Message, Receive, Scope

    from lehr_api.settings import Settings

OPEN_LIMIT = 16 << 10
"""Bytes of a body for a path that needs no token: the form of the login."""
SLOWEST = 500
"""Bytes a second, as in Apache's mod_reqtimeout, after ``Settings.body_grace_s``."""
MOST_UNFINISHED = 32
"""Bodies of one attempt or person that may be on the way at once. Each node and each command
sends one at a time.
"""


class Bodies:
    """Watches the bodies of all requests of a server; for the event loop's thread only."""

    def __init__(self, settings: Settings) -> None:
        self._settings = settings
        self._unfinished: Counter[str] = Counter()

    @contextlib.contextmanager
    def watch(self, scope: Scope, receive: Receive) -> Iterator[Receive]:
        """Return a ``receive`` for the request, which raises TooLarge and SlowBody.

        Raises:
            TooLarge: the stated length is above the limit.
            Busy: too many bodies of the attempt or person are on the way.
        """
        limit = self._limit(scope)
        headers = Headers(scope=scope)
        stated = headers.get("content-length")
        if stated is not None and limit is not None:
            # The HTTP server counts a body with a stated length.
            if not (stated.isascii() and stated.isdecimal()) or int(stated) > limit:
                raise _too_large(limit)
            limit = None
        if stated in {None, "0"} and "transfer-encoding" not in headers:
            yield receive
            return
        sender = _sender(scope)
        if sender is not None and self._unfinished[sender] >= MOST_UNFINISHED:
            raise Busy(f"{MOST_UNFINISHED} requests of {sender} are not whole yet.")
        body = _Body(receive, limit, self._settings.body_grace_s)
        if sender is None:
            yield body.receive
            return
        self._unfinished[sender] += 1
        body.finished.callback(self._finish, sender)
        with body.finished:
            yield body.receive

    def _limit(self, scope: Scope) -> int | None:
        """Return the limit in bytes; None for a route that reads in pieces and counts them."""
        path = scope["path"]
        if auth.is_open(path):
            return OPEN_LIMIT
        if auth.attempt_of(path) is not None:
            return self._settings.chunk_limit
        if scope["method"] == "PUT" and auth.is_capsule(path):
            return None
        return self._settings.body_limit

    def _finish(self, sender: str) -> None:
        self._unfinished[sender] -= 1
        if not self._unfinished[sender]:
            del self._unfinished[sender]


def _sender(scope: Scope) -> str | None:
    """Return who sends the body; None on an open path, whose bodies are small."""
    attempt = auth.attempt_of(scope["path"])
    if attempt is not None:
        return f"attempt {attempt}"
    person: auth.Person | None = scope.get("state", {}).get("person")
    return None if person is None else f"the token {person.name}"


class _Body:
    """One body on the way. Only time spent waiting for the client counts."""

    def __init__(self, receive: Receive, limit: int | None, grace_s: float) -> None:
        self._receive = receive
        self._limit = limit
        self._grace_s = grace_s
        self._size = 0
        self._waited_s = 0.0
        self._whole = False
        self.finished = contextlib.ExitStack()
        """Closed as soon as the body is whole, or its request has ended."""

    async def receive(self) -> Message:
        if self._whole:
            return await self._receive()
        left_s = self._grace_s + self._size / SLOWEST - self._waited_s
        begun = time.monotonic()
        try:
            with anyio.fail_after(max(0.0, left_s)):
                message = await self._receive()
        except TimeoutError as error:
            raise SlowBody(
                f"the body did not arrive: {self._size:,} bytes of it in "
                f"{self._waited_s + time.monotonic() - begun:.0f} s.",
                hint=f"After {self._grace_s:g} s it needs {SLOWEST} bytes a second. Send it again.",
            ) from error
        self._waited_s += time.monotonic() - begun
        self._size += len(message.get("body", b""))
        if self._limit is not None and self._size > self._limit:
            raise _too_large(self._limit)
        if message["type"] != "http.request" or not message.get("more_body", False):
            self._whole = True
            self.finished.close()
        return message


def _too_large(limit: int) -> TooLarge:
    return TooLarge(f"the body is larger than {limit:,} bytes, the limit.")
