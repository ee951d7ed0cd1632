"""A short way for the two requests that every attempt repeats: a piece of a stream, a heartbeat.

Nearly all requests of a busy server are of these two kinds, and routing, validation, compression
and telemetry take most of their time. So the ordinary ones pass by the other middleware: a valid
header, a known stream, a heartbeat that can be answered from memory. Everything else goes on to
the documented routes (``routes/attempts.py``), which have the same effect and the exact errors.
``Guard`` comes before, so each request has the attempt's token already. On a busy server, people's
requests come first.
"""

from __future__ import annotations

import asyncio
import re
from collections import deque
from collections.abc import Callable
from typing import Any

import orjson
from fastapi import FastAPI
from pydantic import ValidationError
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from lehr.control.liveness import stretched
from lehr.errors import OffsetMismatch
from lehr_api.auth import API
from lehr_api.routes.attempts import (
    PROTOCOL,
    STREAM,
    HeartbeatMessage,
    append_piece,
    mismatch_response,
)
from lehr_api.services import Services

_PREFIX = f"{API}/attempts/"
_OFFSET = re.compile(rb"offset=(0|[1-9][0-9]{0,17})")
_PROTOCOL = (b"lehr-protocol", str(PROTOCOL).encode())
_JSON = [(b"content-type", b"application/json"), _PROTOCOL]

AT_ONCE = 64
"""Workers' requests that begin in one pass of the event loop, which then looks for new ones."""
BESIDE_PEOPLE = 8
PAUSE_S = 0.05
"""While a person waits, only so many begin in so long, so that the thread that makes the answer
gets Python's lock. Workers still get 160 requests a second, however many people ask."""
LONGEST_S = 5.0
"""A person counts as waiting for so long: a stalled upload must not slow all workers for ever."""
SMOOTH_S = 2.0
"""Time over which waiting is averaged."""
_MOST_WEIGHT = 0.1
"""Weight of one wait in the mean, on a server with few requests."""


def serve_workers_first(app: FastAPI, guard: Callable[[ASGIApp], ASGIApp]) -> None:
    """Put the lane before all middleware of ``app``; call it last; ``guard`` checks first."""
    build = app.build_middleware_stack

    def build_stack() -> ASGIApp:
        others, turns = build(), Turns()
        return WorkersFirst(guard(WorkerLane(others, turns)), others, turns)

    app.build_middleware_stack = build_stack  # type: ignore[method-assign]


class Turns:
    """Turns of workers' requests. Used only in the event loop's thread."""

    def __init__(self) -> None:
        self.waited_s = 0.0
        """Mean time that workers' requests wait for their turn; 0 unless there are too many."""
        self._averaged_at = 0.0
        self._people = 0
        self._left = AT_ONCE
        self._waiting: deque[asyncio.Future[None]] = deque()
        self._next: asyncio.Handle | None = None

    async def wait(self) -> None:
        """Return when a worker's request may begin. The first to come is the first to begin."""
        loop = asyncio.get_running_loop()
        began = loop.time()
        waited_s = 0.0
        if self._left:
            self._left -= 1
            self._begin_later()
        else:
            turn = loop.create_future()
            self._waiting.append(turn)
            await turn
            waited_s = loop.time() - began
        since_s, self._averaged_at = loop.time() - self._averaged_at, loop.time()
        self.waited_s += (waited_s - self.waited_s) * min(since_s / SMOOTH_S, _MOST_WEIGHT)

    async def answer_person(self, app: ASGIApp, scope: Scope, receive: Receive, send: Send) -> None:
        """Call ``app``; a person waits until its answer begins. An event stream begins at once."""
        waiting = 1

        def begun() -> None:
            nonlocal waiting
            self._people -= waiting
            waiting = 0

        async def send_answer(message: Message) -> None:
            begun()
            await send(message)

        self._people += 1
        limit = asyncio.get_running_loop().call_later(LONGEST_S, begun)
        try:
            await app(scope, receive, send_answer)
        finally:
            limit.cancel()
            begun()

    def _begin_later(self) -> None:
        if self._next is None:
            pause_s = PAUSE_S if self._people else 0
            self._next = asyncio.get_running_loop().call_later(pause_s, self._begin)

    def _begin(self) -> None:
        self._next = None
        self._left = most = BESIDE_PEOPLE if self._people else AT_ONCE
        while self._waiting and self._left:
            turn = self._waiting.popleft()
            if not turn.done():  # The server stops.
                turn.set_result(None)
                self._left -= 1
        if self._left < most:
            self._begin_later()


class WorkersFirst:
    """Sends requests to attempts' routes into the lane, and all others past it."""

    def __init__(self, lane: ASGIApp, others: ASGIApp, turns: Turns) -> None:
        self.lane = lane
        self.others = others
        self._turns = turns

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "http" and scope["path"].startswith(_PREFIX):
            await self._turns.wait()
            await self.lane(scope, receive, send)
        else:
            await self._turns.answer_person(self.others, scope, receive, send)


class WorkerLane:
    def __init__(self, app: ASGIApp, turns: Turns) -> None:
        self.app = app
        self._turns = turns

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        attempt_id, _, rest = scope["path"][len(_PREFIX) :].partition("/")
        ordinary = _PROTOCOL in scope["headers"]
        if ordinary and scope["method"] == "PUT" and rest.startswith("streams/"):
            await self._append(scope, receive, send, attempt_id, rest[len("streams/") :])
        elif ordinary and scope["method"] == "POST" and rest == "heartbeat":
            await self._heartbeat(scope, receive, send, attempt_id)
        else:
            await self.app(scope, receive, send)

    async def _append(
        self, scope: Scope, receive: Receive, send: Send, attempt_id: str, name: str
    ) -> None:
        offset = _OFFSET.fullmatch(scope["query_string"])
        if offset is None or not STREAM.fullmatch(name):
            await self.app(scope, receive, send)
            return
        services: Services = scope["app"].state.services
        services.intake.check()
        body = await _body(receive)
        if body is None:
            return
        try:
            end = await append_piece(services, attempt_id, name, int(offset[1]), body)
        except OffsetMismatch as error:
            await mismatch_response(error)(scope, receive, send)
            return
        await _answer(send, {"offset": end})

    async def _heartbeat(self, scope: Scope, receive: Receive, send: Send, attempt_id: str) -> None:
        body = await _body(receive)
        if body is None:
            return
        services: Services = scope["app"].state.services
        try:
            report = HeartbeatMessage.model_validate_json(body)
        except ValidationError:
            answer = None
        else:
            answer = services.dispatcher.heartbeat_from_memory(attempt_id, report.model_dump())
        if answer is None:
            await self.app(scope, _replay(body, receive), send)
            return
        if answer["orders"]["desired"] == "run":
            for pause in ("interval_s", "send_s"):
                answer[pause] = stretched(answer[pause], self._turns.waited_s)
        await _answer(send, answer)


async def _answer(send: Send, answer: dict[str, Any]) -> None:
    content = orjson.dumps(answer)
    length = (b"content-length", str(len(content)).encode())
    await send({"type": "http.response.start", "status": 200, "headers": [*_JSON, length]})
    await send({"type": "http.response.body", "body": content})


async def _body(receive: Receive) -> bytes | None:
    """Return the whole body; None if the client has gone."""
    parts = []
    while True:
        message = await receive()
        if message["type"] != "http.request":
            return None
        parts.append(message.get("body", b""))
        if not message.get("more_body", False):
            return b"".join(parts)


def _replay(body: bytes, receive: Receive) -> Receive:
    """Return a ``receive`` that begins with this body again."""
    first: list[Message] = [{"type": "http.request", "body": body, "more_body": False}]

    async def replayed() -> Message:
        return first.pop() if first else await receive()

    return replayed
