"""TLS connections count from before their handshake on, and an unfinished one ends."""

from __future__ import annotations

import asyncio
import contextlib
import errno
import socket
import ssl
import threading
from collections.abc import Iterator
from typing import Any

import pytest
import uvicorn
import uvloop

from lehr_api import open_connections
from lehr_api.connections import LimitedConnection
from lehr_api.connections import open_connections as counter_of
from lehr_api.tls_listener import TlsListener, TlsServer
from lehr_testing.tls import Certificates, private_authority
from lehr_testing.waiting import until

FAR = "127.0.0.2"
"""An address of this machine that the test takes for another machine's."""
MOST = 5
REQUEST = b"GET / HTTP/1.1\r\nHost: localhost\r\n\r\n"


@pytest.fixture(scope="module")
def certificates(tmp_path_factory: pytest.TempPathFactory) -> Certificates:
    return private_authority(tmp_path_factory.mktemp("tls"))


class Served:
    """A server with a certificate, and clients of it."""

    def __init__(
        self, certificates: Certificates, loop: Any, listener: socket.socket | None = None
    ) -> None:
        self.listener = listener or socket.socket()
        self.listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        self.listener.bind(("127.0.0.1", 0))
        self.at = self.listener.getsockname()
        config = uvicorn.Config(
            answer,
            log_config=None,
            access_log=False,
            ssl_certfile=certificates.certificate,
            ssl_keyfile=certificates.key,
            http=LimitedConnection,
            ws="none",
            lifespan="off",
            timeout_graceful_shutdown=5,
        )
        self.server = TlsServer(config)
        self.kept = contextlib.ExitStack()
        self.context = ssl.create_default_context(cafile=str(certificates.authority))

        def serve() -> None:
            with asyncio.Runner(loop_factory=loop) as runner:
                runner.run(self.server.serve(sockets=[self.listener]))

        self.thread = threading.Thread(target=serve, daemon=True)
        self.thread.start()
        until(lambda: self.server.started, within_s=30, what="the server to listen")

    def connect(self, source: str = FAR) -> socket.socket:
        made = socket.create_connection(self.at, timeout=30, source_address=(source, 0))
        return self.kept.enter_context(made)

    def connect_tls(self, source: str = FAR) -> socket.socket:
        made = self.context.wrap_socket(self.connect(source), server_hostname="localhost")
        return self.kept.enter_context(made)

    def is_served(self, source: str = FAR) -> bool:
        """Return whether a new connection from there gets an answer; it is kept open."""
        try:
            made = self.connect_tls(source)
            made.sendall(REQUEST)
            return made.recv(100).startswith(b"HTTP/1.1 204")
        except OSError:
            return False

    @property
    def open(self) -> int:
        return counter_of(self.server.server_state)._by_address[FAR]

    def end(self) -> None:
        self.kept.close()
        self.server.should_exit = True
        self.thread.join(timeout=30)
        assert not self.thread.is_alive(), "the server did not stop"


async def answer(_scope: Any, receive: Any, send: Any) -> None:
    await receive()
    await send({"type": "http.response.start", "status": 204, "headers": []})
    await send({"type": "http.response.body"})


@pytest.fixture(params=[asyncio.new_event_loop, uvloop.new_event_loop], ids=["asyncio", "uvloop"])
def served(
    request: pytest.FixtureRequest, certificates: Certificates, monkeypatch: pytest.MonkeyPatch
) -> Iterator[Served]:
    monkeypatch.setattr(open_connections, "MOST_OF_AN_ADDRESS", MOST)
    monkeypatch.setattr(open_connections, "is_own_machine", lambda address: address != FAR)
    made = Served(certificates, request.param)
    yield made
    made.end()


def test_unfinished_handshakes_count_and_others_are_served(served: Served) -> None:
    for _ in range(MOST):
        served.connect()
    until(lambda: served.open == MOST, within_s=30, what="all to be counted")
    with contextlib.suppress(ConnectionError):
        assert served.connect().recv(1) == b""
    assert not served.is_served(FAR)
    assert served.is_served("127.0.0.1")
    served.kept.close()
    until(lambda: served.open == 0, within_s=30, what="the end of all")
    assert served.is_served(FAR)


def test_handshake_that_does_not_come_is_given_up(
    served: Served, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(TlsListener, "handshake_s", 0.5)
    silent = served.connect()
    assert silent.recv(1) == b""
    until(lambda: served.open == 0, within_s=30, what="its place to be free")


def test_served_connection_counts_until_it_ends(served: Served) -> None:
    assert all(served.is_served() for _ in range(MOST))
    assert served.open == MOST
    assert not served.is_served()
    served.kept.close()
    until(lambda: served.open == 0, within_s=30, what="the end of all")


def test_client_without_tls_frees_its_place(served: Served) -> None:
    plain = served.connect()
    plain.sendall(REQUEST)
    # The server closes it, after an alert of TLS at most.
    with contextlib.suppress(ConnectionError):
        while plain.recv(100):
            pass
    until(lambda: served.open == 0, within_s=30, what="its place to be free")
    assert served.is_served()


def test_server_with_unfinished_handshakes_stops(served: Served) -> None:
    served.connect()
    until(lambda: served.open == 1, within_s=30, what="it to be counted")
    served.server.should_exit = True
    served.thread.join(timeout=30)
    assert not served.thread.is_alive()
    assert served.open == 0


class Full(socket.socket):
    """A listener of a process that has no file left, for one connection."""

    refused = 0

    def accept(self) -> tuple[socket.socket, Any]:
        if not self.refused:
            self.refused += 1
            raise OSError(errno.EMFILE, "Too many open files")
        return super().accept()


def test_listener_goes_on_after_a_fault_of_the_system(
    certificates: Certificates, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("lehr_api.tls_listener._FAULT_S", 0.1)
    listener = Full()
    made = Served(certificates, uvloop.new_event_loop, listener)
    try:
        assert made.is_served("127.0.0.1")
        assert listener.refused == 1
    finally:
        made.end()
