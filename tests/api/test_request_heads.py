"""The head of a request has limits, which count for each request and not for its body."""

from __future__ import annotations

import contextlib
import socket
import time
from collections.abc import Iterator
from pathlib import Path
from urllib.parse import urlsplit

import pytest

from lehr_api import request_heads
from lehr_api.request_heads import LARGEST_HEAD, LimitedHeads
from lehr_testing.api import TOKEN, served

PIECE = 4096


@pytest.fixture
def connection(tmp_path: Path) -> Iterator[socket.socket]:
    with served(tmp_path) as (_, url):
        at = urlsplit(url)
        with socket.create_connection((at.hostname or "", at.port or 0), timeout=20) as made:
            yield made


def head(path: str, **headers: str) -> bytes:
    lines = [f"GET {path} HTTP/1.1", "Host: 127.0.0.1", f"Authorization: Bearer {TOKEN}"]
    return "\r\n".join([*lines, *(f"{k}: {v}" for k, v in headers.items()), "", ""]).encode()


def answer(connection: socket.socket) -> bytes:
    """Read one answer, or what arrives before the end of the connection."""
    found = b""
    while b"\r\n\r\n" not in found:
        piece = connection.recv(65536)
        if not piece:
            return found
        found += piece
    first, _, rest = found.partition(b"\r\n\r\n")
    [length] = [
        int(line.split(b":")[1])
        for line in first.splitlines()
        if line.lower().startswith(b"content-length")
    ]
    while len(rest) < length:
        rest += connection.recv(65536)
    return first


@pytest.mark.parametrize(
    "begin", [b"GET /api/v1/health HTTP/1.1\r\nHost: 127.0.0.1\r\nX: ", b"GET /"]
)
def test_endless_head_is_refused(connection: socket.socket, begin: bytes) -> None:
    connection.sendall(begin)
    sent = 0
    with pytest.raises(OSError):  # noqa: PT012 - it ends somewhere on the way
        while sent < 40 * LARGEST_HEAD:
            connection.sendall(b"a" * PIECE)
            sent += PIECE
            connection.settimeout(0.02)
            try:
                found = connection.recv(100)
            except TimeoutError:
                continue
            assert found == b"" or found.startswith(b"HTTP/1.1 4")
            raise ConnectionResetError
    assert LARGEST_HEAD - PIECE <= sent <= 4 * LARGEST_HEAD


def test_large_head_below_the_limit_is_read(connection: socket.socket) -> None:
    for piece in (head("/api/v1/health", X="a" * (LARGEST_HEAD // 2)),):
        connection.sendall(piece)
    assert answer(connection).startswith(b"HTTP/1.1 200")


def test_each_request_of_a_connection_has_the_limit_for_itself(connection: socket.socket) -> None:
    for _ in range(5):
        for piece in (b"GET /api/v1/health HTTP/1.1\r\nHost: 127.0.0.1\r\n", b"X: "):
            connection.sendall(piece)
        connection.sendall(b"a" * (LARGEST_HEAD // 3))
        connection.sendall(b"\r\n\r\n")
        assert answer(connection).startswith(b"HTTP/1.1 200")


@pytest.mark.parametrize("piece", [PIECE, 8 * LARGEST_HEAD], ids=["pieces", "whole"])
def test_body_is_not_counted(connection: socket.socket, piece: int) -> None:
    size = 8 * LARGEST_HEAD
    first = head("/api/v1/runs", **{"Content-Length": str(size)}).replace(b"GET", b"POST", 1)
    connection.sendall(first)
    for _ in range(size // piece):
        connection.sendall(b" " * piece)
    assert answer(connection).startswith(b"HTTP/1.1 422")
    connection.sendall(head("/api/v1/health"))
    assert answer(connection).startswith(b"HTTP/1.1 200")


@pytest.fixture
def hurried(monkeypatch: pytest.MonkeyPatch, connection: socket.socket) -> socket.socket:
    """A new connection to a server that waits for a head for half a second."""
    monkeypatch.setattr(LimitedHeads, "longest_s", 0.5)
    monkeypatch.setattr(request_heads, "_AGAIN_S", 0.1)
    at = connection.getpeername()
    connection.close()
    return socket.create_connection(at, timeout=20)


HALF = b"GET /api/v1/health HTTP/1.1\r\nHost: 127.0.0.1\r\nX: "


@pytest.mark.parametrize("begin", [b"", b"G", HALF, b"\r\n\r\n"])
@pytest.mark.parametrize("second", [False, True], ids=["first", "second"])
def test_head_that_does_not_come_ends_the_connection(
    hurried: socket.socket, begin: bytes, second: bool
) -> None:
    if second:
        hurried.sendall(head("/api/v1/health"))
        assert answer(hurried).startswith(b"HTTP/1.1 200")
    hurried.sendall(begin)
    found = answer(hurried)
    # Without a byte of the next request, uvicorn ends the connection, and without an answer.
    assert found.startswith(b"HTTP/1.1 408") or (second and found + begin == b"")
    assert hurried.recv(100) == b""


@pytest.mark.parametrize("byte", [b"a", b"\r\n"])
def test_head_that_comes_byte_by_byte_ends_the_connection(
    hurried: socket.socket, byte: bytes
) -> None:
    hurried.sendall(HALF if byte == b"a" else b"\r\n")
    hurried.settimeout(0.05)
    found = None
    for _ in range(400):
        with contextlib.suppress(TimeoutError):
            found = hurried.recv(100)
            break
        hurried.sendall(byte)
    assert found is not None
    assert found.startswith(b"HTTP/1.1 408")


def test_answer_may_take_longer_than_a_head(hurried: socket.socket) -> None:
    hurried.sendall(head("/api/v1/stream"))
    until_s = time.monotonic() + 4 * LimitedHeads.longest_s
    found = b""
    while time.monotonic() < until_s:
        hurried.settimeout(0.2)
        with contextlib.suppress(TimeoutError):
            piece = hurried.recv(65536)
            assert piece, found
            found += piece
    assert found.startswith(b"HTTP/1.1 200")
