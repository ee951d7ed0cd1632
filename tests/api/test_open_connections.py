"""How many connections a server keeps open: of one address, and in all."""

from __future__ import annotations

import contextlib
import logging
import resource
import socket
from pathlib import Path
from urllib.parse import urlsplit

import pytest

from lehr_api import open_connections
from lehr_api.open_connections import MOST_OF_AN_ADDRESS, OpenConnections, is_own_machine
from lehr_testing.api import served
from lehr_testing.waiting import until

FAR = "127.0.0.2"
"""An address of this machine that the test takes for another machine's."""


def test_another_machine_has_a_limit_and_this_one_has_that_of_all(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(resource, "getrlimit", lambda _: (65_536, 65_536))
    found = OpenConnections()
    found.most = MOST_OF_AN_ADDRESS + 100
    assert all(found.add("192.0.2.1") for _ in range(MOST_OF_AN_ADDRESS))
    assert not found.add("192.0.2.1")
    assert found.add("192.0.2.2")
    found.remove("192.0.2.1")
    assert found.add("192.0.2.1")
    assert all(found.add("127.0.0.1") for _ in range(99))
    assert not found.add("127.0.0.1")
    assert not found.add("192.0.2.3")


def test_half_of_the_files_that_may_be_open_are_for_connections(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(resource, "getrlimit", lambda _: (4096, 4096))
    found = OpenConnections()
    assert (found.most, found.most_of_an_address) == (2048, 512)
    monkeypatch.setattr(resource, "getrlimit", lambda _: (resource.RLIM_INFINITY,) * 2)
    found = OpenConnections()
    assert (found.most, found.most_of_an_address) == (None, MOST_OF_AN_ADDRESS)


@pytest.mark.parametrize(
    ("address", "own"),
    [("127.0.0.1", True), ("::1", True), ("", True), ("192.0.2.1", False), ("2001:db8::1", False)],
)
def test_peer_on_this_machine_is_told_apart(address: str, *, own: bool) -> None:
    assert is_own_machine(address) == own


def test_connections_beyond_the_limit_are_closed_and_others_served(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(open_connections, "MOST_OF_AN_ADDRESS", 5)
    monkeypatch.setattr(open_connections, "is_own_machine", lambda address: address != FAR)
    with served(tmp_path) as (_, url), contextlib.ExitStack() as kept:
        at = urlsplit(url)

        def connect(source: str) -> socket.socket:
            where = (at.hostname or "", at.port or 0)
            made = socket.create_connection(where, timeout=30, source_address=(source, 0))
            return kept.enter_context(made)

        def is_served(made: socket.socket) -> bool:
            try:
                made.sendall(b"GET /api/v1/health HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\n")
                return made.recv(100).startswith(b"HTTP/1.1 200")
            except ConnectionError:
                return False

        # Each is served before the next one comes, so the server has counted it.
        far = [connect(FAR) for _ in range(5)]
        assert all(map(is_served, far))
        with caplog.at_level(logging.WARNING, logger="lehr.api"):
            assert not is_served(connect(FAR))
            assert not is_served(connect(FAR))
        warned = [line for line in caplog.messages if "further ones are closed at once" in line]
        assert warned == [f"5 connections from {FAR} are open: further ones are closed at once"]
        assert is_served(connect("127.0.0.1"))
        far[0].close()
        until(lambda: is_served(connect(FAR)), within_s=30, what="the place to be free")
