"""The HTTP client of the shipper, with every answer that a server, a proxy or a fault may give."""

from __future__ import annotations

import socket
from collections.abc import Iterator

import pytest

from lehr.node.http_client import Outage, ServerConnection
from lehr_testing.scripted_http import Scripted, reply


@pytest.fixture
def scripted() -> Iterator[type[Scripted]]:
    made: list[Scripted] = []

    class Remembered(Scripted):
        def __init__(self, *connections: list[bytes], **more: int) -> None:
            super().__init__(*connections, **more)
            made.append(self)

    yield Remembered
    for server in made:
        server.listener.close()


def test_requests_carry_token_protocol_and_body_on_one_kept_connection(scripted):
    server = scripted([reply(b'{"offset": 5}'), reply(b'{"closed": true}')])
    client = server.client(prefix="/lehr")
    assert client.put("streams/events.jsonl?offset=0", b"hello").json() == {"offset": 5}
    assert client.post("exit", {"exit": {}}).json() == {"closed": True}
    first, second = server.requests
    assert first.startswith(
        b"PUT /lehr/api/v1/attempts/run-1/streams/events.jsonl?offset=0 HTTP/1.1\r\n"
    )
    assert b"\r\nAuthorization: Bearer secret\r\n" in first
    assert b"\r\nLehr-Protocol: 1\r\n" in first
    assert first.endswith(b"\r\n\r\nhello")
    assert b"Content-Type: application/json" in second


def test_chunked_response_of_a_proxy_is_assembled(scripted):
    chunked = (
        b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n"
        b'9;x=y\r\n{"offset"|\r\n4\r\n: 5}\r\n0\r\nTrailer: x\r\n\r\n'
    )
    server = scripted([chunked, reply(b'{"offset": 6}')])
    client = server.client()
    assert client.get("streams").json() == {"offset": 5}
    assert client.get("streams").json() == {"offset": 6}


def test_closed_connection_is_reopened_once(scripted):
    server = scripted([reply(b"{}")], [reply(b'{"again": 1}')])
    client = server.client()
    client.get("streams")
    assert server.closed.acquire(timeout=20)
    assert client.get("streams").json() == {"again": 1}
    assert len(server.requests) == 2


def test_retry_after_of_a_429_response_is_respected(scripted):
    server = scripted([reply(b"{}", b"429 Too Many Requests", b"Retry-After: 7")])
    with pytest.raises(Outage) as caught:
        server.client().put("streams/x?offset=0", b"data")
    assert caught.value.wait_s == 7.0


@pytest.mark.parametrize(
    "answer",
    [
        b"SSH-2.0-OpenSSH_9.2\r\n\r\n",
        b"HTTP/1.1 200 OK\r\n\r\n",
        b"HTTP/1.1 200 OK\r\nContent-Length: lots\r\n\r\n",
        b"HTTP/1.1 200 OK\r\nContent-Length: -5\r\n\r\n",
        b"HTTP/1.1 200 OK\r\nContent-Length: 10\r\n\r\n{}",
        b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\nzz\r\n",
        b"HTTP/1.1 200 OK\r\nContent-Length: 4\r\n\r\nnope",
        b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\n[]",
        b"",
    ],
)
def test_invalid_response_is_an_outage(scripted, answer):
    server = scripted([answer])
    with pytest.raises(Outage):
        server.client().get("streams").json()


def test_refused_connection_is_an_outage():
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    client = ServerConnection(lambda: f"http://127.0.0.1:{port}", "t", "run-1")
    with pytest.raises(Outage, match="ConnectionRefusedError"):
        client.get("streams")
