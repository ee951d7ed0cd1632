"""A connection that only costs memory is closed: rests of bodies, trailers, unread answers."""

from __future__ import annotations

import contextlib
import json
import socket
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import pytest

from lehr_api.connections import LARGEST_FRAME, LimitedConnection
from lehr_api.dashboard.assets import plotly_url
from lehr_testing.api import RUN_SPEC, TOKEN, served, served_by

PATIENCE_S = 30


@pytest.fixture
def address(tmp_path: Path) -> Iterator[tuple[str, int]]:
    with served(tmp_path) as (_, url):
        at = urlsplit(url)
        yield at.hostname or "", at.port or 0


@pytest.fixture
def connection(address: tuple[str, int]) -> Iterator[socket.socket]:
    with socket.create_connection(address, timeout=PATIENCE_S) as made:
        yield made


def head(method: str, path: str, *more: str) -> bytes:
    lines = [
        f"{method} {path} HTTP/1.1",
        "Host: 127.0.0.1",
        f"Authorization: Bearer {TOKEN}",
        *more,
    ]
    return ("\r\n".join(lines) + "\r\n\r\n").encode()


def bytes_until_closed(connection: socket.socket, pieces: Iterator[bytes]) -> int:
    """Send until the other side closes; return how many bytes that took."""
    sent = 0
    with contextlib.suppress(ConnectionError):
        for piece in pieces:
            connection.sendall(piece)
            sent += len(piece)
            if sent > 200 * LARGEST_FRAME:
                raise AssertionError(f"it took {sent:,} bytes")
    return sent


def repeated(piece: bytes) -> Iterator[bytes]:
    while True:
        yield piece


CHUNKED = head("GET", "/api/v1/health", "Transfer-Encoding: chunked")


@pytest.mark.parametrize(
    ("begin", "piece"),
    [
        (b"0\r\n", b"a1: b\r\n" * 600),
        (b"0\r\na: ", b"b" * 4096),
        (b"5;x=", b"y" * 4096),
        (b"", b"1;x=y\r\nz\r\n" + b"0" * 4096),
    ],
    ids=["trailers", "trailer", "extension", "size"],
)
def test_what_surrounds_a_body_has_a_limit(
    connection: socket.socket, begin: bytes, piece: bytes
) -> None:
    connection.sendall(CHUNKED + begin)
    bytes_until_closed(connection, repeated(piece))


@pytest.mark.parametrize("size", [1, 7, 100_000])
def test_chunks_of_any_size_are_read(connection: socket.socket, size: int) -> None:
    body = json.dumps({"spec": RUN_SPEC, "provenance": {"notes": "x" * 300_000}}).encode()
    chunks = (body[at : at + size] for at in range(0, len(body), size))
    data = b"".join(b"%x\r\n%s\r\n" % (len(chunk), chunk) for chunk in chunks)
    json_head = head(
        "POST", "/api/v1/runs", "Transfer-Encoding: chunked", "Content-Type: application/json"
    )
    for trailer in (b"", b"x-checksum: 1\r\n"):
        connection.sendall(json_head + data + b"0\r\n" + trailer + b"\r\n")
        found = connection.recv(65536)
        assert found.startswith(b"HTTP/1.1 201"), found
        connection.settimeout(0.3)
        with contextlib.suppress(TimeoutError):
            while connection.recv(65536):
                pass
        connection.settimeout(PATIENCE_S)


def test_requests_in_one_piece_do_not_count_for_one_another(connection: socket.socket) -> None:
    body = json.dumps({"spec": RUN_SPEC, "provenance": {"notes": "x" * 150_000}}).encode()
    one = head(
        "POST", "/api/v1/runs", f"Content-Length: {len(body)}", "Content-Type: application/json"
    )
    connection.sendall((one + body) * 3 + one + body[:1])
    found = b""
    while found.count(b"HTTP/1.1 201") < 3:
        piece = connection.recv(65536)
        assert piece, found[-300:]
        found += piece
    connection.sendall(body[1:])
    while found.count(b"HTTP/1.1 201") < 4:
        piece = connection.recv(65536)
        assert piece, found[-300:]
        found += piece


@pytest.mark.parametrize(
    ("begin", "piece"),
    [
        (head("GET", "/api/v1/health", "Content-Length: 10000"), b"x"),
        (CHUNKED, b"1\r\nx\r\n"),
        (CHUNKED + b"0\r\n", b"a"),
    ],
    ids=["body", "chunks", "trailer"],
)
def test_rest_of_an_answered_request_has_a_time_limit(
    monkeypatch: pytest.MonkeyPatch, address: tuple[str, int], begin: bytes, piece: bytes
) -> None:
    monkeypatch.setattr(LimitedConnection, "rest_s", 0.3)
    with socket.create_connection(address, timeout=PATIENCE_S) as connection:
        connection.sendall(begin)
        assert connection.recv(65536).startswith(b"HTTP/1.1 200")

        def slowly() -> Iterator[bytes]:
            for _ in range(PATIENCE_S * 10):
                yield piece
                time.sleep(0.1)
            raise AssertionError("it is still open")

        bytes_until_closed(connection, slowly())


def test_connection_whose_request_was_whole_stays_open(
    monkeypatch: pytest.MonkeyPatch, address: tuple[str, int]
) -> None:
    # So long that a busy machine sends the rest in time.
    monkeypatch.setattr(LimitedConnection, "rest_s", 2.0)
    with socket.create_connection(address, timeout=PATIENCE_S) as connection:
        for _ in range(2):
            connection.sendall(head("GET", "/api/v1/health", "Content-Length: 3") + b"x")
            found = b""
            while not found.endswith(b"}"):
                piece = connection.recv(65536)
                assert piece, found
                found += piece
            assert found.startswith(b"HTTP/1.1 200")
            connection.sendall(b"xx")
            time.sleep(2.5)  # Longer than the rest may take.


def test_trailers_are_no_headers_of_their_request() -> None:
    """They come after a request is judged: a second Host or token among them must not count."""
    seen: list[tuple[bytes, bytes]] = []

    async def app(scope: Any, receive: Any, send: Any) -> None:
        while (await receive()).get("more_body"):
            pass
        seen.extend(scope["headers"])
        await send({"type": "http.response.start", "status": 204, "headers": []})
        await send({"type": "http.response.body"})

    with served_by(app) as address, socket.create_connection(address, timeout=PATIENCE_S) as made:
        made.sendall(CHUNKED + b"1\r\nx\r\n0\r\n")
        made.sendall(b"host: evil.example\r\nx-trailer: 1\r\n\r\n")
        assert made.recv(65536).startswith(b"HTTP/1.1 204")
    assert [value for name, value in seen if name == b"host"] == [b"127.0.0.1"]
    assert b"x-trailer" not in dict(seen)


def unread(address: tuple[str, int], encoding: str = "identity") -> socket.socket:
    """Return a connection for whose answers little room is before it reads them."""
    made = socket.socket()
    made.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
    made.settimeout(PATIENCE_S)
    made.connect(address)
    made.sendall(head("GET", plotly_url(), f"Accept-Encoding: {encoding}") * 6)
    return made


@pytest.fixture
def lost(monkeypatch: pytest.MonkeyPatch) -> list[Exception | None]:
    """Return a list that gets why each connection ends.

    A client does not see it at once: it reads what the kernel has taken.
    """
    found: list[Exception | None] = []
    real = LimitedConnection.connection_lost

    def noted(self: LimitedConnection, why: Exception | None) -> None:
        found.append(why)
        real(self, why)

    monkeypatch.setattr(LimitedConnection, "connection_lost", noted)
    return found


def test_client_that_does_not_read_is_disconnected(
    monkeypatch: pytest.MonkeyPatch, address: tuple[str, int], lost: list[Exception | None]
) -> None:
    monkeypatch.setattr(LimitedConnection, "unread_s", 0.5)
    with unread(address):
        until_s = time.monotonic() + PATIENCE_S
        while not lost and time.monotonic() < until_s:
            time.sleep(0.1)
        assert lost


@pytest.mark.parametrize(
    ("encoding", "each", "pause_s"),
    [("identity", 200_000, 0.02), ("gzip", 20_000, 0.1)],
    ids=["in pieces", "in one piece"],
)  # The kernel takes more of the second one only after seconds.
def test_client_that_reads_slowly_gets_its_answer(
    monkeypatch: pytest.MonkeyPatch,
    address: tuple[str, int],
    lost: list[Exception | None],
    encoding: str,
    each: int,
    pause_s: float,
) -> None:
    monkeypatch.setattr(LimitedConnection, "unread_s", 0.5)
    with unread(address, encoding) as connection:
        read, begun = 0, time.monotonic()
        while time.monotonic() < begun + 4:
            piece = connection.recv(each)
            assert piece, f"closed after {read:,} bytes"
            read += len(piece)
            time.sleep(pause_s)
        assert not lost
