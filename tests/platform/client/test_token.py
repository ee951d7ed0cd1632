"""A token is sent only to the server that it belongs to."""

from __future__ import annotations

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

from lehr import Client, home
from lehr.client import proven
from lehr.errors import ServerUnavailable, Unauthorized
from lehr_testing.api import TOKEN, served

LEHR = str(Path(sys.executable).parent / "lehr")
HEALTH = {"status": "ok", "version": "9", "protocol": 1}


class Listener:
    """Another program on the loopback that records what it receives, and sends prepared answers."""

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

    def received_a_token(self) -> bool:
        return any("authorization" in text.lower() or TOKEN in text for text in self.received)


@pytest.fixture
def own_home(tmp_path, monkeypatch):
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


def write_server_json(where: Path, address: str) -> None:
    """Write the server.json of a killed server."""
    home.write_server(where, home.ServerInfo(address, 1, "0.1.0"))


def test_missing_server_is_reported_and_no_default_address_is_tried(
    own_home, listener, monkeypatch
):
    monkeypatch.setattr(home, "DEFAULT_PORT", listener.port)
    with pytest.raises(ServerUnavailable, match=r"no Lehr server is running for .*own") as raised:
        Client().runs()
    assert "lehr up" in str(raised.value)
    assert listener.received == []


@pytest.mark.parametrize("named", ["by server.json", "as argument", "by LEHR_SERVER"])
def test_token_of_the_home_is_not_sent_to_another_program_on_the_port(
    own_home, listener, monkeypatch, named
):
    argument = None
    if named == "by server.json":
        write_server_json(own_home, listener.address)
    elif named == "as argument":
        argument = listener.address.replace("127.0.0.1", "localhost")
    else:
        monkeypatch.setenv("LEHR_SERVER", listener.address)
    with Client(argument) as client:
        for ask in (client.runs, client.health, client.cluster, lambda: next(client.stream())):
            with pytest.raises(Unauthorized, match=r"this home's token.*was not sent"):
                ask()
    assert len(listener.received) == 4
    assert not listener.received_a_token()


def test_token_of_the_environment_is_sent_only_to_a_named_server(own_home, listener, monkeypatch):
    monkeypatch.setenv("LEHR_TOKEN", TOKEN)
    write_server_json(own_home, listener.address)
    with pytest.raises(Unauthorized, match="the token given"):
        Client().health()
    assert not listener.received_a_token()
    # Whoever names the server has decided; and the listener does note a token that it gets.
    Client(listener.address).health()
    assert listener.received_a_token()


def test_the_homes_token_is_not_sent_to_another_machine(own_home, monkeypatch):
    def sent(server: str) -> tuple[object, str | None]:
        http = Client(server).transport._http
        return http.auth, http.headers.get("authorization")

    assert sent("https://lehr.example") == (None, None)
    assert sent("http://127.0.0.1.evil.example") == (None, None)
    monkeypatch.setenv("LEHR_TOKEN", "given")
    assert sent("https://lehr.example") == (None, "Bearer given")


def test_command_line_sends_no_token_to_another_program(own_home, listener):
    write_server_json(own_home, listener.address)
    environment = {k: v for k, v in os.environ.items() if k not in {"LEHR_SERVER", "LEHR_TOKEN"}}
    for command in (["status"], ["ls"], ["doctor", "--json"]):
        done = subprocess.run(
            [LEHR, *command], env=environment, check=False, capture_output=True, text=True
        )
        output = done.stdout + done.stderr
        assert "has not shown that it knows this home's token" in output, command
        assert "lehr up" in output
    assert listener.received
    assert not listener.received_a_token()


def test_a_forwarded_proof_of_another_server_is_rejected(own_home, tmp_path):
    with served(tmp_path / "theirs") as (_, address):

        def passed_on(path: str) -> bytes:
            with urllib.request.urlopen(f"{address}{path}") as answer:
                return bytes(answer.read())

        with Listener(answer=passed_on) as between:
            write_server_json(own_home, between.address)
            with pytest.raises(Unauthorized, match="was not sent"):
                Client().runs()
            assert not between.received_a_token()
        write_server_json(own_home, address)
        assert Client().runs() == []


def test_server_of_the_home_gets_the_token_with_every_kind_of_request(own_home, tmp_path):
    with served(tmp_path / "home") as (_, address):
        write_server_json(own_home, address)
        with Client() as client:
            assert client.runs() == []
            assert next(client.stream()).kind == "hello"
        with Client(address.replace("127.0.0.1", "localhost")) as client:
            assert client.cluster().gpus_total == 8


@pytest.mark.parametrize("noticed", [True, False])
def test_client_requires_a_new_proof_when_the_port_may_have_changed(
    own_home, tmp_path, monkeypatch, noticed
):
    if not noticed:
        monkeypatch.setattr(proven, "HOLDS_S", 0.0)
    with served(tmp_path / "home") as (_, address):
        write_server_json(own_home, address)
        client = Client()
        assert client.runs() == []
    if noticed:
        with pytest.raises(ServerUnavailable):
            client.runs()
    with Listener(port=int(address.rpartition(":")[2])) as squatter:
        with pytest.raises(Unauthorized, match="was not sent"):
            client.runs()
        assert squatter.received
        assert not squatter.received_a_token()
