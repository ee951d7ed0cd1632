"""Checks before every route, mount and socket: host, origin, token, body, headers.

Plain ASGI, so that nothing added to the app later bypasses it, and so that streamed answers are not
buffered.
"""

from __future__ import annotations

import ipaddress
import logging
import re
import time
from collections.abc import Awaitable, Callable
from dataclasses import KW_ONLY, dataclass

from anyio import to_thread
from starlette.datastructures import Headers
from starlette.requests import ClientDisconnect
from starlette.types import ASGIApp, Message, Receive, Scope, Send
from structlog.contextvars import bind_contextvars

from lehr.base import access, own_logs
from lehr.base.access import become_actor
from lehr.errors import LehrError, StoreUnavailable
from lehr.store import Store
from lehr_api import auth
from lehr_api.logins import EndedLogins, Person
from lehr_api.problems import TooLarge, error_response, unexpected_response
from lehr_api.settings import Settings

_log = logging.getLogger("lehr.api")
_LONGEST_PATH = 300
OPEN_LIMIT = 16 << 10
"""Bytes of a body for a path that needs no token: the form of the login."""
_SUBJECT = re.compile(rf"{auth.API}/(run|attempt|sweep|rollout)s/([\w-]{{1,40}})(?:/|\Z)")

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
_ENCODED = [(name.lower().encode(), value.encode()) for name, value in HEADERS.items()]
_PARTS = (b"text/javascript", b"text/css")
_OF_PARTS = [
    (name, value)
    for name, value in _ENCODED
    if name in {b"x-content-type-options", b"cross-origin-resource-policy"}
]
"""Of scripts and styles, 50 a page: the others are about documents, which they never are."""


@dataclass(eq=False, repr=False)
class Guard:
    app: ASGIApp
    _: KW_ONLY
    settings: Settings
    attempt_token_sha256: Callable[[str], Awaitable[str | None]]
    store: Callable[[], Store]
    ended_logins: Callable[[], EndedLogins]

    def __post_init__(self) -> None:
        self._keys = auth.Keys(self.settings.token)
        self._names = auth.own_names(self.settings)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "lifespan":
            await self.app(scope, receive, send)
            return
        started = False
        person: Person | None = None

        async def send_guarded(message: Message) -> None:
            nonlocal started
            if message["type"] == "http.response.start":
                started = True
                if (
                    person is not None
                    and scope["method"] not in access.READING
                    # What an agent's tool changes is a request of its own.
                    and scope["path"] != auth.AGENTS
                    # It changed nothing, and another write would wait for the store once more.
                    and message["status"] != StoreUnavailable.status
                ):
                    await to_thread.run_sync(self._audit, person, scope, message["status"])
                own = {name.lower(): value for name, value in message["headers"]}
                is_part = own.get(b"content-type", b"").startswith(_PARTS)
                more = _OF_PARTS if is_part else _ENCODED
                message["headers"] = [
                    *message["headers"],
                    *(header for header in more if header[0] not in own),
                ]
            await send(message)

        try:
            person = await self._identify(scope)
            bind_contextvars(**_subject(scope["path"]))
            if person is not None:
                scope.setdefault("state", {})["person"] = person
                become_actor(person.name)
            if scope["type"] == "http":
                receive = _limited(scope, receive, self.settings)
            await self.app(scope, receive, send_guarded)
        except LehrError as error:
            if started:
                raise
            if scope["type"] == "websocket":
                await send({"type": "websocket.close", "code": 1008, "reason": error.code})
                return
            await error_response(error)(scope, receive, send_guarded)
        except ClientDisconnect:
            return  # Nobody is there to be answered.
        except Exception:
            _log.exception("request failed: %s %s", scope.get("method"), scope["path"])
            if started or scope["type"] == "websocket":
                raise
            await unexpected_response()(scope, receive, send_guarded)

    async def _identify(self, scope: Scope) -> Person | None:
        """Return the person whose request it is; None for a worker's, a node's and an open path."""
        headers = Headers(scope=scope)
        path: str = scope["path"]
        auth.check_host(headers, self._names, loopback=self.settings.loopback)
        auth.check_origin(headers, scope.get("method", "WEBSOCKET"), scope["scheme"])
        if auth.is_open(path):
            return None
        if path in auth.NODE_PATHS and auth.check_node(headers, self._keys, now=time.time()):
            return None
        attempt = auth.attempt_of(path)
        if attempt is None:
            tokens = self.store().access_tokens
            return auth.check_person(headers, self._keys, tokens, self.ended_logins())
        auth.check_attempt(headers, await self.attempt_token_sha256(attempt))
        return None

    def _audit(self, person: Person, scope: Scope, status: int) -> None:
        """Record a request that changes something, before it is answered."""
        client = scope.get("client")
        try:
            self.store().audit.add(
                person.name,
                person.role,
                method=scope["method"],
                path=scope["path"][:_LONGEST_PATH],
                status=status,
                address=_address(client[0]) if client else "",
            )
        except StoreUnavailable as error:
            _log.error("a request of %s was not audited: %s", person.name, error)


def _address(given: str) -> str:
    """Return an address of the network; a proxy passes on what its client says."""
    try:
        return str(ipaddress.ip_address(given))
    except ValueError:
        return "invalid"


def _subject(path: str) -> dict[str, str]:
    """Return the run, attempt, sweep or rollout of a path, for the log lines of its request."""
    found = _SUBJECT.match(path)
    if found is None:
        return {}
    kind, name = found.groups()
    return own_logs.of_attempt(name) if kind == "attempt" else own_logs.of(kind, name)


def _limited(scope: Scope, receive: Receive, settings: Settings) -> Receive:
    """Return a ``receive`` for the request, which raises TooLarge above the limit of its path.

    Slow and countless connections are left to a proxy (docs/operations.md).

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
    if scope["method"] == "PUT" and auth.takes_file(path):
        return None
    return settings.body_limit


def _too_large(limit: int) -> TooLarge:
    return TooLarge(f"the body is larger than {limit:,} bytes, the limit.")
