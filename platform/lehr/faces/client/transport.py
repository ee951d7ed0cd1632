"""HTTP to a Lehr server: the token, retries of safe requests, problem answers as exceptions."""

from __future__ import annotations

import json
import os
import socket
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any, TypeVar
from urllib.parse import urlsplit

from pydantic import BaseModel

from lehr import __version__
from lehr.errors import ServerUnavailable, UserError
from lehr.faces.client import problems
from lehr.faces.client.problems import problem_error
from lehr.schemas.base import Page

if TYPE_CHECKING:
    import ssl

    import httpx

_TRIES = 4
_LONGEST_PAUSE_S = 5.0
TIMEOUT_S = 60.0
"""A server that restarts must not end a wait of hours."""
SLOW_S = 3.0
"""Seconds without an answer after which the caller is notified."""
UPLOAD_S = 60.0
UPLOAD_BYTES_PER_S = 200_000.0
"""Time limit of an upload: this many seconds, and its size at this rate."""
SILENCE_LIMIT_S = 45.0
"""A stream sends a heartbeat every 15 s. After three missing ones, the connection counts as
broken.
"""

_NO_SUCH_HOST = "no such host"

Params = Mapping[str, Any]
V = TypeVar("V")
M = TypeVar("M", bound=BaseModel)
PAGE = 200
"""Items that one answer of a list has, at most."""


@dataclass(frozen=True)
class StreamEvent:
    """A change of ``run``, ``sweep``, ``metrics``, ``log`` or ``cluster``.

    ``hello`` comes first on each connection, also after a reconnect: read again what may have
    changed in between. ``heartbeat`` comes when nothing else does.
    """

    kind: str
    data: dict[str, Any] = field(default_factory=dict)


def _trusted(*, encrypted: bool) -> ssl.SSLContext | bool:
    """Return the certificates that are trusted: those of SSL_CERT_FILE, else httpx's.

    Reading them takes longer than most commands, so without encryption there are none.
    """
    import ssl

    if not encrypted:
        return ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    authorities = os.environ.get("SSL_CERT_FILE")
    if not authorities:
        return True
    try:
        return ssl.create_default_context(cafile=authorities)
    except OSError as error:
        raise UserError(
            f"SSL_CERT_FILE is {authorities!r}, and cannot be read: {error}.",
            hint="Name a file of certificates in PEM, or unset it.",
        ) from error


class Transport:
    """One connection pool to one server. Safe to share between threads."""

    def __init__(
        self,
        server: str,
        token: str | None,
        *,
        timeout_s: float,
        send_token_while: Callable[[], bool] | None = None,
        on_silence: Callable[[str], None] | None = None,
    ) -> None:
        """Create the connection pool.

        ``on_silence`` is called with a text, from another thread, when an answer is late.
        ``send_token_while`` is asked before each request; while it is false, nothing is sent.
        """
        import httpx

        address = urlsplit(server)
        if address.scheme not in {"http", "https"} or not address.hostname:
            raise UserError(
                f"{server!r} is not the address of a server.",
                hint="Write it as http://127.0.0.1:5347",
            )
        self.server = server.rstrip("/")
        self.on_silence = on_silence
        headers = {"User-Agent": f"lehr/{__version__}", "Accept": "application/json"}
        if token:
            headers["Authorization"] = f"Bearer {token}"
        self._send_token_while = send_token_while
        # Web proxies must not receive requests to this machine, where a compressed answer takes
        # several times as long as a plain one.
        beyond = address.hostname not in {"127.0.0.1", "localhost", "::1"}
        if not beyond:
            headers["Accept-Encoding"] = "identity"
        self._http = httpx.Client(
            base_url=f"{self.server}/api/v1",
            headers=headers,
            event_hooks={"request": [self._check_server]},
            timeout=timeout_s,
            trust_env=beyond,
            verify=_trusted(encrypted=address.scheme == "https"),
        )

    def close(self) -> None:
        self._http.close()

    def get(self, path: str, params: Params | None = None) -> bytes:
        return self._send("GET", path, params=params, again=True).content

    def read(self, kind: type[M], path: str, params: Params | None = None) -> M:
        """Return the answer of a GET as a ``kind``."""
        return kind.model_validate_json(self.get(path, params))

    def text(self, path: str) -> str:
        return self._send("GET", path, again=True).text

    def delete(
        self, path: str, params: Params | None = None, *, within_s: float | None = None
    ) -> bytes:
        return self._send("DELETE", path, params=params, again=True, within_s=within_s).content

    def put(self, path: str, body: Mapping[str, Any]) -> bytes:
        return self._send("PUT", path, json=body, again=True).content

    def pages(self, path: str, page: type[Page[V]], params: Params, limit: int | None) -> list[V]:
        """Return all items of a list that has pages, or at most ``limit``."""
        items: list[V] = []
        cursor: str | None = None
        while limit is None or len(items) < limit:
            size = PAGE if limit is None else min(PAGE, limit - len(items))
            read = self.read(page, path, {**params, "limit": size, "cursor": cursor})
            items += read.items
            cursor = read.next_cursor
            if cursor is None:
                break
        return items

    def upload(self, path: str, file: IO[bytes], size: int) -> bytes:
        """Send a file of ``size`` bytes as the body of a PUT."""
        headers = {"Content-Type": "application/octet-stream", "Content-Length": str(size)}
        within = UPLOAD_S + size / UPLOAD_BYTES_PER_S
        answer = self._send("PUT", path, content=file, headers=headers, again=True, within_s=within)
        return answer.content

    def post(
        self,
        path: str,
        body: Mapping[str, Any] | None = None,
        *,
        idempotency_key: str | None = None,
        params: Params | None = None,
        within_s: float | None = None,
        again: bool = True,
    ) -> bytes:
        """Send a POST; ``within_s`` is the time limit of slow answers.

        With an idempotency key it is retried, unless ``again`` is false.
        """
        headers = {"Idempotency-Key": idempotency_key} if idempotency_key else {}
        answer = self._send(
            "POST",
            path,
            params=params,
            json=body,
            headers=headers,
            again=again and idempotency_key is not None,
            within_s=within_s,
        )
        return answer.content

    def pieces(self, path: str, params: Params | None = None, *, first: int = 0) -> Iterator[bytes]:
        """Yield a large answer in pieces, from byte ``first``."""
        import httpx

        headers = {"Range": f"bytes={first}-"} if first else {}
        try:
            with self._http.stream("GET", path, params=_present(params), headers=headers) as answer:
                if not answer.is_success:
                    answer.read()
                    raise problem_error(answer.status_code, answer.content)
                yield from answer.iter_bytes()
        except httpx.TransportError as error:
            raise self._unavailable(error) from error

    def events(self, params: Params | None = None) -> Iterator[StreamEvent]:
        """Yield events of the server; reconnect when the connection breaks.

        Raises:
            ServerUnavailable: the server cannot be reached, at first or for a minute after a break.
        """
        import httpx

        timeout = httpx.Timeout(SILENCE_LIMIT_S, connect=10.0)
        headers = {"Accept": "text/event-stream"}
        heard_at: float | None = None
        while True:
            try:
                with self._http.stream(
                    "GET", "/stream", params=_present(params), headers=headers, timeout=timeout
                ) as answer:
                    if answer.status_code != 200:
                        answer.read()
                        raise problem_error(answer.status_code, answer.content)
                    for event in _parse_events(answer.iter_lines()):
                        heard_at = time.monotonic()
                        yield event
            except httpx.TransportError as error:
                # The server restarts, or a proxy closed the connection; the next connection shows
                # which.
                if heard_at is None or time.monotonic() - heard_at > TIMEOUT_S:
                    raise self._unavailable(error) from error
            time.sleep(0.5)

    def _send(
        self,
        method: str,
        path: str,
        *,
        again: bool,
        params: Params | None = None,
        json: Any = None,
        content: IO[bytes] | None = None,
        headers: Mapping[str, str] | None = None,
        within_s: float | None = None,
    ) -> httpx.Response:
        """Send one request. ``again``: it is safe to repeat, so a broken connection is retried."""
        import httpx

        for attempt in range(1, _TRIES + 1):
            last = attempt == _TRIES
            if content is not None:
                content.seek(0)
            try:
                # Requests that are known to be slow are not reported.
                with nullcontext() if within_s else self._watched():
                    answer = self._http.request(
                        method,
                        path,
                        params=_present(params),
                        json=json,
                        content=content,
                        headers=dict(headers or {}),
                        timeout=within_s or httpx.USE_CLIENT_DEFAULT,
                    )
            except (httpx.ConnectError, httpx.ReadTimeout) as error:
                # A request that was slow once will be slow again.
                raise self._unavailable(error) from error
            except httpx.TransportError as error:
                if not again or last:
                    raise self._unavailable(error) from error
                time.sleep(0.1 * 2**attempt)
                continue
            if answer.status_code in {429, 503} and again and not last:
                time.sleep(_pause(answer.headers.get("Retry-After"), attempt))
                continue
            if answer.is_success:
                return answer
            raise problem_error(answer.status_code, answer.content)
        raise AssertionError("unreachable: the last attempt returns or raises")

    def _check_server(self, request: httpx.Request) -> None:
        """Send nothing to a program that has taken the port of an ended server."""
        import httpx

        if self._send_token_while is not None and not self._send_token_while():
            why = "the server of this home does not run; the token was not sent"
            raise httpx.ConnectError(why, request=request)

    @contextmanager
    def _watched(self) -> Iterator[None]:
        if self.on_silence is None:
            yield
            return
        where = urlsplit(self.server).netloc
        message = (
            f"Lehr's server at {where} has not answered for {SLOW_S:.0f} s; the limit is "
            f"{self._http.timeout.read or 0:.0f} s."
        )
        timer = threading.Timer(SLOW_S, self.on_silence, [message])
        timer.daemon = True
        timer.start()
        try:
            yield
        finally:
            timer.cancel()

    def _unavailable(self, error: httpx.TransportError) -> ServerUnavailable:
        import httpx

        where = urlsplit(self.server).netloc
        why = _why(error)
        hint = problems.no_answer(self.server, unknown_host=why == _NO_SUCH_HOST)
        if isinstance(error, httpx.ReadTimeout):
            hint = problems.no_answer_in_time(self.server)
        if "CERTIFICATE_VERIFY_FAILED" in str(error):
            hint = "If an authority of your own signed its certificate: lehr --ca FILE, or LEHR_CA"
        return ServerUnavailable(f"Lehr's server does not answer at {where} ({why}).", hint=hint)


def _parse_events(lines: Iterator[str]) -> Iterator[StreamEvent]:
    """Parse server-sent events; a comment is a heartbeat."""
    kind, data = "message", ""
    for line in lines:
        if line.startswith(":"):
            yield StreamEvent("heartbeat")
        elif line.startswith("event:"):
            kind = line[6:].strip()
        elif line.startswith("data:"):
            data += line[5:].strip()
        elif not line and data:
            yield StreamEvent(kind, json.loads(data))
            kind, data = "message", ""


def _present(params: Params | None) -> dict[str, Any] | None:
    """Drop parameters that are None, and write booleans as the server reads them."""
    if params is None:
        return None
    given = {name: value for name, value in params.items() if value is not None}
    return {n: str(v).lower() if isinstance(v, bool) else v for n, v in given.items()}


def _pause(retry_after: str | None, attempt: int) -> float:
    try:
        pause = float(retry_after) if retry_after else 0.2 * 2**attempt
    except ValueError:
        pause = 1.0
    return min(max(pause, 0.0), _LONGEST_PAUSE_S)


def _why(error: httpx.TransportError) -> str:
    import httpx

    cause: BaseException | None = error
    while cause is not None:
        if isinstance(cause, ConnectionRefusedError):
            return "no process listens on the port"
        if isinstance(cause, socket.gaierror):
            return _NO_SUCH_HOST
        cause = cause.__cause__ or cause.__context__
    if isinstance(error, httpx.ConnectTimeout):
        return "the connection timed out"
    if isinstance(error, httpx.TimeoutException):
        return "it accepted the connection, but no answer came in time"
    return str(error) or type(error).__name__


def save(data: bytes, path: Path | str) -> Path:
    """Write an answer to a file; return its path.

    Raises:
        UserError: the file cannot be written.
    """
    target = Path(path)
    try:
        target.write_bytes(data)
    except OSError as error:
        raise UserError(f"{target} cannot be written: {error.strerror}.") from error
    return target
