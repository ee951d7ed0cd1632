"""Requests to an application without a client or a socket: thousands of them take seconds."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterable
from dataclasses import dataclass, field
from typing import Any
from urllib.parse import quote

from starlette.testclient import TestClient

from lehr_testing.api import TOKEN


@dataclass
class Request:
    method: str
    path: str
    """Decoded, as a server passes it on."""
    token: str = TOKEN
    body: Iterable[bytes] = ()
    headers: dict[str, str] = field(default_factory=dict)
    query: str = ""


@dataclass
class Answer:
    status: int
    headers: dict[str, str]
    body: bytes
    read: int
    """Bytes of the request's body that were read."""


def ask(client: TestClient, app: Any, requests: Iterable[Request]) -> list[Answer]:
    """Send the requests one after another, in the client's event loop."""

    async def all_of() -> list[Answer]:
        return [await _ask(app, request) for request in requests]

    return client.portal.call(all_of)


async def _ask(app: Any, request: Request) -> Answer:
    given = {
        "host": "127.0.0.1:5347",
        "authorization": f"Bearer {request.token}",
        "lehr-protocol": "1",
        "content-type": "application/json",
        **request.headers,
    }
    scope = {
        "type": "http",
        "asgi": {"version": "3.0"},
        "http_version": "1.1",
        "method": request.method,
        "scheme": "http",
        "path": request.path,
        "raw_path": quote(request.path).encode(),
        "query_string": request.query.encode(),
        "root_path": "",
        "headers": [(k.encode(), v.encode()) for k, v in given.items()],
        "client": ("127.0.0.1", 1),
        "server": ("127.0.0.1", 5347),
    }
    answer = Answer(0, {}, b"", 0)
    pieces = _pieces(request.body)

    async def receive() -> dict[str, Any]:
        piece = await anext(pieces, None)
        if piece is None:
            return {"type": "http.disconnect"}
        answer.read += len(piece["body"])
        return piece

    async def send(message: dict[str, Any]) -> None:
        if message["type"] == "http.response.start":
            answer.status = message["status"]
            answer.headers = {k.decode(): v.decode() for k, v in message["headers"]}
        elif message["type"] == "http.response.body":
            answer.body += message.get("body", b"")

    await app(scope, receive, send)
    return answer


async def _pieces(body: Iterable[bytes]) -> AsyncIterator[dict[str, Any]]:
    for piece in body:
        yield {"type": "http.request", "body": piece, "more_body": True}
    yield {"type": "http.request", "body": b"", "more_body": False}
