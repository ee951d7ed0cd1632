"""A body has a time to arrive in, a size, and an attempt has few on the way at once."""

from __future__ import annotations

import contextlib
import json
import socket
import time
from collections.abc import Iterator
from pathlib import Path
from urllib.parse import urlsplit

import httpx
import pytest

from lehr_api.request_bodies import MOST_UNFINISHED, OPEN_LIMIT
from lehr_testing.api import RUN_SPEC, TOKEN, Api, attempt_token, begin, served
from lehr_testing.waiting import until

GRACE_S = 1.0


class Server:
    def __init__(self, api: Api, url: str) -> None:
        at = urlsplit(url)
        self.api = api
        self.at = (at.hostname or "", at.port or 0)
        self.open = contextlib.ExitStack()

    def send(
        self, method: str, path: str, body: bytes, *, size: int | None = None, token: str = TOKEN
    ) -> socket.socket:
        """Send a request whose body is stated to have ``size`` bytes; None: it comes in pieces."""
        made = self.open.enter_context(socket.create_connection(self.at, timeout=30))
        length = "Transfer-Encoding: chunked" if size is None else f"Content-Length: {size}"
        lines = [
            f"{method} {path} HTTP/1.1",
            "Host: 127.0.0.1",
            "Content-Type: application/json",
            "Lehr-Protocol: 1",
            length,
        ]
        if token:
            lines.append(f"Authorization: Bearer {token}")
        if size is None:
            body = b"%x\r\n%s\r\n" % (len(body), body) if body else b""
        made.sendall("\r\n".join([*lines, "", ""]).encode() + body)
        return made


@pytest.fixture
def server(tmp_path: Path) -> Iterator[Server]:
    with served(tmp_path, body_grace_s=GRACE_S) as (api, url):
        made = Server(api, url)
        with made.open:
            yield made


@pytest.fixture
def patient(tmp_path: Path) -> Iterator[Server]:
    """Return a server that gives up no body within a test."""
    with served(tmp_path, body_grace_s=300.0) as (api, url):
        made = Server(api, url)
        with made.open:
            yield made


def answer(connection: socket.socket) -> tuple[int, bytes]:
    """Return the status and body of an answer that ends its connection."""
    found = b""
    while True:
        try:
            piece = connection.recv(65536)
        except ConnectionResetError:
            break
        if not piece:
            break
        found += piece
        first, _, rest = found.partition(b"\r\n\r\n")
        length = [one for one in first.lower().split(b"\r\n") if one.startswith(b"content-length")]
        if length and len(rest) >= int(length[0].split(b":")[1]):
            break
    first, _, rest = found.partition(b"\r\n\r\n")
    return int(first.split()[1]), rest


def attempt(server: Server) -> tuple[str, str]:
    """Begin an attempt of a new run; return its id and token."""
    body = json.dumps({"spec": RUN_SPEC}).encode()
    status, created = answer(server.send("POST", "/api/v1/runs", body, size=len(body)))
    assert status == 201, created
    run = json.loads(created)["id"]
    return begin(server.api.store, run), attempt_token(run)


@pytest.mark.parametrize("size", [1000, None], ids=["stated", "pieces"])
@pytest.mark.parametrize("path", ["/api/v1/runs", "/login", "/api/v1/attempts/ID/heartbeat"])
def test_body_without_an_end_is_given_up(server: Server, path: str, size: int | None) -> None:
    token = "" if path == "/login" else TOKEN
    if "ID" in path:
        one, token = attempt(server)
        path = path.replace("ID", one)
    connection = server.send("POST", path, b'{"spec', size=size, token=token)
    status, body = answer(connection)
    assert status == 408
    problem = json.loads(body)
    assert problem["code"] == "too_slow"
    assert "6 bytes of it" in problem["detail"]
    assert connection.recv(100) == b""


def test_capsule_without_an_end_is_given_up(server: Server) -> None:
    digest = "0" * 64
    connection = server.send("PUT", f"/api/v1/code/{digest}", b"begin", size=5000)
    status, body = answer(connection)
    assert (status, json.loads(body)["code"]) == (408, "too_slow")
    assert not [one for one in server.api.settings.home.rglob(f"*{digest[:12]}*") if one.is_file()]


def test_body_that_trickles_is_given_up(server: Server) -> None:
    """Each byte in time does not help: it is the rate that counts."""
    connection = server.send("POST", "/api/v1/runs", b"{", size=100_000)
    connection.settimeout(0.1)
    found = b""
    for _ in range(300):
        with contextlib.suppress(TimeoutError):
            found = connection.recv(100)
            break
        connection.sendall(b" ")
    assert found.startswith(b"HTTP/1.1 408")


def test_slow_line_that_keeps_the_rate_is_served(server: Server) -> None:
    body = json.dumps({"spec": RUN_SPEC, "note": " " * 9_000}).encode()
    pieces = [body[at : at + 1_000] for at in range(0, len(body), 1_000)]
    begun = time.monotonic()
    connection = server.send("POST", "/api/v1/runs", pieces[0], size=len(body))
    for piece in pieces[1:]:
        time.sleep(0.2)
        connection.sendall(piece)
    assert time.monotonic() - begun > 1.5 * GRACE_S
    status, answered = answer(connection)
    assert status != 408, answered
    assert json.loads(answered).get("code") != "too_slow"


@pytest.mark.parametrize("size", [OPEN_LIMIT + 1, None], ids=["stated", "pieces"])
def test_login_has_a_small_limit(server: Server, size: int | None) -> None:
    connection = server.send("POST", "/login", b"x" * (OPEN_LIMIT + 1), size=size, token="")
    assert answer(connection)[0] == 413


def fill(server: Server, method: str, path: str, token: str) -> None:
    """Leave as many bodies of the token on the way as it may have; return when they are counted."""
    for _ in range(MOST_UNFINISHED):
        server.send(method, path, b"", size=10, token=token)

    def full() -> bool:
        status, body = answer(server.send(method, path, b"x" * 10, size=10, token=token))
        return status == 429 and json.loads(body)["code"] == "busy"

    until(full, within_s=30, what="the server to have read the heads of all requests")


def test_attempt_has_few_bodies_on_the_way(patient: Server) -> None:
    (one, token), (other, others) = attempt(patient), attempt(patient)
    path = "/api/v1/attempts/{}/streams/rank-0.log?offset=0"
    fill(patient, "PUT", path.format(one), token)
    done = patient.send("PUT", path.format(other), b"x" * 10, size=10, token=others)
    assert answer(done) == (200, b'{"offset":10}')


@pytest.mark.parametrize("closed", [True, False], ids=["closed", "given up"])
def test_body_that_never_became_whole_does_not_count_for_good(
    server: Server, *, closed: bool
) -> None:
    one, token = attempt(server)
    path = f"/api/v1/attempts/{one}/streams/rank-0.log?offset=0"
    left = [server.send("PUT", path, b"", size=10, token=token) for _ in range(MOST_UNFINISHED)]
    for connection in left:
        if closed:
            connection.close()
        else:
            assert answer(connection)[0] == 408
    for _ in range(2 * MOST_UNFINISHED):
        again = server.send("PUT", path, b"x" * 10, size=10, token=token)
        assert answer(again)[0] in {200, 409}


def test_person_has_few_bodies_on_the_way_and_nobody_else_waits_for_them(patient: Server) -> None:
    server = patient
    headers = {"Authorization": f"Bearer {TOKEN}"}
    given = {"name": "anna", "role": "viewer"}
    made = httpx.post(
        f"http://{server.at[0]}:{server.at[1]}/api/v1/tokens", json=given, headers=headers
    )
    token = made.json()["token"]
    fill(server, "POST", "/api/v1/sweeps/x/transfer", token)
    body = json.dumps({"spec": RUN_SPEC}).encode()
    assert answer(server.send("POST", "/api/v1/runs", body, size=len(body)))[0] == 201
