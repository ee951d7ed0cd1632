"""Messages reach public addresses only, at the address that was checked."""

from __future__ import annotations

import http.server
import json
import socket
import threading
from collections.abc import Iterator
from contextlib import contextmanager

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lehr.alerting import delivery
from lehr.alerting.delivery import Undelivered, is_public, post


class Listener(http.server.BaseHTTPRequestHandler):
    """Keeps what is posted; answers with the status of its server."""

    def do_POST(self) -> None:
        body = self.rfile.read(int(self.headers["Content-Length"]))
        self.server.got.append((self.path, self.headers["Host"], json.loads(body)))
        self.send_response(self.server.answer)
        if 300 <= self.server.answer < 400:
            self.send_header("Location", f"http://127.0.0.1:{self.server.server_port}/secret")
        self.end_headers()

    def log_message(self, *_: object) -> None: ...


@contextmanager
def listening(answer: int = 200) -> Iterator[http.server.HTTPServer]:
    server = http.server.HTTPServer(("127.0.0.1", 0), Listener)
    server.got, server.answer = [], answer
    threading.Thread(target=server.serve_forever, daemon=True).start()
    try:
        yield server
    finally:
        server.shutdown()
        server.server_close()


def resolve(monkeypatch: pytest.MonkeyPatch, *answers: str) -> list[str]:
    """Let each lookup of a name give the next of these addresses; return the names looked up."""
    asked: list[str] = []
    left = list(answers)
    real = socket.getaddrinfo

    def lookup(host, port, *args, **options):
        try:
            socket.inet_pton(socket.AF_INET6 if ":" in str(host) else socket.AF_INET, str(host))
        except OSError:
            asked.append(host)
            return real(left.pop(0), port, *args, **options)
        return real(host, port, *args, **options)

    monkeypatch.setattr(socket, "getaddrinfo", lookup)
    return asked


@pytest.mark.parametrize(
    "address",
    [
        "127.0.0.1", "0.0.0.0", "10.1.2.3", "172.16.0.1", "192.168.1.1", "169.254.169.254", "100.64.0.1",
        "::1", "::", "fe80::1", "fe80::1%eth0", "fc00::1", "::ffff:127.0.0.1", "::ffff:169.254.169.254",
        "64:ff9b::7f00:1", "64:ff9b:1::7f00:1", "::7f00:2", "2002:7f00:1::", "224.0.0.1", "255.255.255.255", "192.0.2.1",
    ],
)  # fmt: skip
def test_addresses_inside_a_network_are_not_public(address: str) -> None:
    assert not is_public(address)


@pytest.mark.parametrize("address", ["8.8.8.8", "1.1.1.1", "2606:4700:4700::1111"])
def test_addresses_of_the_internet_are_public(address: str) -> None:
    assert is_public(address)


@given(st.ip_addresses(v=4))
def test_mapped_address_is_judged_like_the_one_that_it_contains(address) -> None:
    assert is_public(f"::ffff:{address}") == is_public(str(address))


@pytest.mark.parametrize(
    "url",
    [
        "http://127.0.0.1:{port}/x", "http://localhost:{port}/x", "http://[::ffff:127.0.0.1]:{port}/x",
        "http://2130706433:{port}/x", "http://0x7f.1:{port}/x", "http://127.1:{port}/x", "http://0:{port}/x",
    ],
)  # fmt: skip
def test_internal_address_gets_nothing_however_it_is_written(url: str) -> None:
    with listening() as server:
        with pytest.raises(Undelivered, match="inside the server's network") as caught:
            post(url.format(port=server.server_port), {"text": "hello"})
        assert server.got == []
    assert caught.value.hint is not None
    assert "LEHR_WEBHOOK_HOSTS" in caught.value.hint


def test_name_with_one_internal_address_gets_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    def lookup(host, port, *_, **__):
        return [(2, 1, 6, "", (one, port)) for one in ("8.8.8.8", "10.0.0.1")]

    monkeypatch.setattr(socket, "getaddrinfo", lookup)
    with pytest.raises(Undelivered, match=r"hooks\.test is 10\.0\.0\.1"):
        post("http://hooks.test/x", {})


def test_message_goes_to_the_address_that_was_checked(monkeypatch: pytest.MonkeyPatch) -> None:
    """A name that resolves to a public address first and to an internal one a moment later."""
    asked = resolve(monkeypatch, "127.0.0.1", "10.0.0.1")
    checked: list[str] = []
    monkeypatch.setattr(delivery, "is_public", lambda one: not checked.append(one))
    with listening() as server:
        post(f"http://hooks.test:{server.server_port}/in?k=1", {"text": "hello"})
        assert asked == ["hooks.test"], "it must be looked up once"
        assert checked == ["127.0.0.1"]
        [(path, host, body)] = server.got
    assert (path, body) == ("/in?k=1", {"text": "hello"})
    assert host == f"hooks.test:{server.server_port}"


def test_redirect_is_not_followed() -> None:
    with listening(answer=302) as server:
        url = f"http://localhost:{server.server_port}/x"
        with pytest.raises(Undelivered, match="redirect") as caught:
            post(url, {}, allowed_hosts={"localhost"})
        assert [path for path, _, _ in server.got] == ["/x"]
    assert not caught.value.again


@pytest.mark.parametrize(("answer", "again"), [(500, True), (429, True), (404, False)])
def test_answer_decides_whether_another_try_makes_sense(answer: int, again: bool) -> None:
    with listening(answer) as server:
        url = f"http://localhost:{server.server_port}/x"
        with pytest.raises(Undelivered, match=str(answer)) as caught:
            post(url, {}, allowed_hosts={"localhost"})
    assert caught.value.again is again


def test_proxies_of_the_environment_are_not_used(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HTTP_PROXY", "http://127.0.0.1:9")
    with listening() as server:
        post(f"http://localhost:{server.server_port}/x", {"a": 1}, allowed_hosts={"localhost"})
        assert len(server.got) == 1


@pytest.mark.parametrize("trickle", [b"HTTP/1.1 200 OK\r\n", b"HTTP/1.1 200 OK\r\n\r\n"])
def test_answer_that_never_ends_does_not_hold_the_sender(
    monkeypatch: pytest.MonkeyPatch, trickle: bytes
) -> None:
    """A receiver whose headers, or whose body, come byte by byte for ever."""
    monkeypatch.setattr(delivery, "TIMEOUT_S", 1.0)
    ended = threading.Event()

    def trickling(server: socket.socket) -> None:
        connection, _ = server.accept()
        with connection:
            connection.sendall(trickle)
            while not ended.wait(0.1):
                try:
                    connection.sendall(b"x")
                except OSError:
                    return

    with socket.create_server(("127.0.0.1", 0)) as server:
        thread = threading.Thread(target=trickling, args=(server,), daemon=True)
        thread.start()
        url = f"http://localhost:{server.getsockname()[1]}/x"
        if trickle.endswith(b"\r\n\r\n"):
            post(url, {}, allowed_hosts={"localhost"})
        else:
            with pytest.raises(Undelivered, match="did not answer within 1 s") as caught:
                post(url, {}, allowed_hosts={"localhost"})
            assert caught.value.again
        ended.set()
        thread.join(5)
