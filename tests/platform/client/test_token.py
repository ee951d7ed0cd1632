"""To whom a token is sent: to the server that it belongs to, and to nobody else."""

from __future__ import annotations

import asyncio
import json
import os
import subprocess
import sys
import threading
import urllib.request
from collections.abc import Callable
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Self

import pytest

from lehr import AsyncClient, Client, home
from lehr.client import proven
from lehr.errors import ServerUnavailable, Unauthorized
from lehr_testing.api import TOKEN, served

LEHR = str(Path(sys.executable).parent / "lehr")
HEALTH = {"status": "ok", "version": "9", "protocol": 1}


class Listener:
    """Another program on the loopback: notes all that it receives, and answers as it likes."""

    def __init__(self, port: int = 0, answer: Callable[[str], bytes] | None = None) -> None:
        self.received: list[str] = []
        listener = self

        class Handler(BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                listener.received.append(f"{self.requestline}\n{self.headers}")
                body = json.dumps(HEALTH).encode() if answer is None else answer(self.path)
                self.send_response(200)
                self.send_header("Content-Length", str(len(body)))
                self.end_headers()
                self.wfile.write(body)

            def log_message(self, *_: object) -> None:
                pass

        self._server = ThreadingHTTPServer(("127.0.0.1", port), Handler)
        self.port = self._server.server_port
        self.address = f"http://127.0.0.1:{self.port}"
        self._thread = threading.Thread(target=self._server.serve_forever, daemon=True)
        self._thread.start()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._server.shutdown()
        self._server.server_close()
        self._thread.join(timeout=20)

    def heard_a_token(self) -> bool:
        return any("authorization" in text.lower() or TOKEN in text for text in self.received)


@pytest.fixture
def own(tmp_path, monkeypatch):
    """A home with a token, whose server does not run."""
    where = tmp_path / "own"
    where.mkdir()
    (where / "token").write_text(f"{TOKEN}\n")
    (where / "token").chmod(0o600)
    for name in ("LEHR_SERVER", "LEHR_TOKEN"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("LEHR_HOME", str(where))
    return where


@pytest.fixture
def listener():
    with Listener() as one:
        yield one


def left_behind(where: Path, address: str) -> None:
    """The server.json of a server that was killed."""
    home.write_server(where, home.ServerInfo(address, 1, "0.1.0"))


def test_without_a_server_none_is_guessed_at_and_the_cure_is_named(own, listener, monkeypatch):
    monkeypatch.setattr(home, "DEFAULT_PORT", listener.port)
    with pytest.raises(ServerUnavailable, match=r"no Lehr server is running for .*own") as raised:
        Client().runs()
    assert "lehr up" in str(raised.value)
    assert listener.received == []


@pytest.mark.parametrize("named", ["by server.json", "as argument", "by LEHR_SERVER"])
def test_a_program_that_took_the_port_is_not_given_the_homes_token(
    own, listener, monkeypatch, named
):
    argument = None
    if named == "by server.json":
        left_behind(own, listener.address)
    elif named == "as argument":
        argument = listener.address.replace("127.0.0.1", "localhost")
    else:
        monkeypatch.setenv("LEHR_SERVER", listener.address)
    with Client(argument) as client:
        for ask in (client.runs, client.health, client.cluster, lambda: next(client.stream())):
            with pytest.raises(Unauthorized, match=r"this home's token.*was not sent"):
                ask()
    assert len(listener.received) == 4
    assert not listener.heard_a_token()


def test_a_token_of_the_environment_goes_to_a_named_server_and_to_no_other(
    own, listener, monkeypatch
):
    monkeypatch.setenv("LEHR_TOKEN", TOKEN)
    left_behind(own, listener.address)
    with pytest.raises(Unauthorized, match="the token given"):
        Client().health()
    assert not listener.heard_a_token()
    # Whoever names the server has decided; and the listener does note a token that it gets.
    Client(listener.address).health()
    assert listener.heard_a_token()


def test_the_homes_token_is_not_sent_to_another_machine(own, monkeypatch):
    def sent(server: str) -> tuple[object, str | None]:
        http = Client(server).transport._http
        return http.auth, http.headers.get("authorization")

    assert sent("https://lehr.example") == (None, None)
    assert sent("http://127.0.0.1.evil.example") == (None, None)
    monkeypatch.setenv("LEHR_TOKEN", "given")
    assert sent("https://lehr.example") == (None, "Bearer given")


def test_the_asynchronous_client_asks_for_the_proof_too(own, listener):
    left_behind(own, listener.address)

    async def ask() -> None:
        async with AsyncClient() as client:
            await client.runs()

    with pytest.raises(Unauthorized, match="was not sent"):
        asyncio.run(ask())
    assert len(listener.received) == 1
    assert not listener.heard_a_token()


def test_the_command_line_gives_nothing_away(own, listener):
    left_behind(own, listener.address)
    environment = {k: v for k, v in os.environ.items() if k not in {"LEHR_SERVER", "LEHR_TOKEN"}}
    for command in (["status"], ["ls"], ["doctor", "--json"]):
        done = subprocess.run(
            [LEHR, *command], env=environment, check=False, capture_output=True, text=True
        )
        said = done.stdout + done.stderr
        assert "has not shown that it knows this home's token" in said, command
        assert "lehr up" in said
    assert listener.received
    assert not listener.heard_a_token()


def test_a_forwarded_proof_of_another_server_is_rejected(own, tmp_path):
    with served(tmp_path / "theirs") as (_, address):

        def passed_on(path: str) -> bytes:
            with urllib.request.urlopen(f"{address}{path}") as answer:
                return bytes(answer.read())

        with Listener(answer=passed_on) as between:
            left_behind(own, between.address)
            with pytest.raises(Unauthorized, match="was not sent"):
                Client().runs()
            assert not between.heard_a_token()
        left_behind(own, address)
        assert Client().runs() == []


def test_the_homes_own_server_gets_it_over_every_kind_of_request(own, tmp_path):
    with served(tmp_path / "home") as (_, address):
        left_behind(own, address)

        async def ask() -> list[str]:
            async with AsyncClient() as client:
                assert await client.runs() == []
                async for event in client.stream():
                    return [event.kind]
            return []

        assert asyncio.run(ask()) == ["hello"]
        with Client() as client:
            assert client.runs() == []
            assert next(client.stream()).kind == "hello"
        with Client(address.replace("127.0.0.1", "localhost")) as client:
            assert client.cluster().gpus_total == 8


@pytest.mark.parametrize("noticed", [True, False])
def test_a_client_asks_again_once_another_program_may_have_the_port(
    own, tmp_path, monkeypatch, noticed
):
    if not noticed:
        monkeypatch.setattr(proven, "HOLDS_S", 0.0)
    with served(tmp_path / "home") as (_, address):
        left_behind(own, address)
        client = Client()
        assert client.runs() == []
    if noticed:
        with pytest.raises(ServerUnavailable):
            client.runs()
    with Listener(port=int(address.rpartition(":")[2])) as squatter:
        with pytest.raises(Unauthorized, match="was not sent"):
            client.runs()
        assert squatter.received
        assert not squatter.heard_a_token()
