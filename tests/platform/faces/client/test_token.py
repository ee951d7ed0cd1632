"""A token is sent only to the server that it belongs to."""

from __future__ import annotations

import contextlib
import json
import os
import subprocess
import sys
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Self

import pytest

from lehr import Client
from lehr.base import home
from lehr.errors import ServerUnavailable
from lehr_testing.api import TOKEN, served

LEHR = str(Path(sys.executable).parent / "lehr")
HEALTH = {"status": "ok", "version": "9", "protocol": 1}


class Listener:
    """Another program on the loopback that records what it receives."""

    def __init__(self, port: int = 0) -> None:
        self.received: list[str] = []
        listener = self

        class Handler(BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                listener.received.append(f"{self.requestline}\n{self.headers}")
                body = json.dumps(HEALTH).encode()
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


def write_server_json(where: Path, address: str, pid: int = 1) -> None:
    """Write the server.json of a killed server; with the pid of this process, of a living one."""
    home.write_server(where, home.ServerInfo(address, pid, "0.1.0"))


def test_missing_server_is_reported_and_no_default_address_is_tried(
    own_home, listener, monkeypatch
):
    monkeypatch.setattr(home, "DEFAULT_PORT", listener.port)
    with pytest.raises(ServerUnavailable, match=r"no Lehr server is running for .*own") as raised:
        Client().runs()
    assert "lehr up" in str(raised.value)
    assert listener.received == []


@pytest.mark.parametrize("named", ["by server.json", "as argument", "by LEHR_SERVER"])
@pytest.mark.parametrize("ended", ["killed", "another server holds the home"])
def test_nothing_is_sent_to_another_program_on_the_port_of_an_ended_server(
    own_home, listener, monkeypatch, named, ended
):
    argument = None
    write_server_json(own_home, listener.address)
    if named == "as argument":
        argument = listener.address.replace("127.0.0.1", "localhost")
    elif named == "by LEHR_SERVER":
        monkeypatch.setenv("LEHR_SERVER", listener.address)
    else:
        monkeypatch.setenv("LEHR_TOKEN", TOKEN)
    with contextlib.ExitStack() as holders, Client(argument) as client:
        if ended != "killed":
            holders.enter_context(home.lock(own_home))
        for ask in (client.runs, client.health, client.cluster, lambda: next(client.stream())):
            with pytest.raises(ServerUnavailable, match="the token was not sent") as raised:
                ask()
        assert "lehr up" in str(raised.value)
    assert listener.received == []


def test_a_port_that_is_not_the_homes_gets_no_token_unless_it_is_given(
    own_home, listener, monkeypatch
):
    write_server_json(own_home, f"http://127.0.0.1:{listener.port + 1}", os.getpid())
    with home.lock(own_home):
        Client(listener.address).health()
        assert not listener.received_a_token()
        # Whoever names both has decided, as for a forwarded port of another machine or container.
        monkeypatch.setenv("LEHR_TOKEN", TOKEN)
        Client(listener.address).health()
    assert listener.received_a_token()


def test_the_homes_token_is_not_sent_to_another_machine(own_home, monkeypatch):
    def sent(server: str) -> str | None:
        http = Client(server).transport._http
        return http.headers.get("authorization")

    assert sent("https://lehr.example") is None
    assert sent("http://127.0.0.1.evil.example") is None
    monkeypatch.setenv("LEHR_TOKEN", "given")
    assert sent("https://lehr.example") == "Bearer given"


def test_command_line_sends_no_token_to_another_program(own_home, listener):
    write_server_json(own_home, listener.address)
    environment = {k: v for k, v in os.environ.items() if k not in {"LEHR_SERVER", "LEHR_TOKEN"}}
    for command in (["status"], ["ls"], ["doctor", "--json"]):
        done = subprocess.run(
            [LEHR, *command], env=environment, check=False, capture_output=True, text=True
        )
        output = done.stdout + done.stderr
        assert "not sent" in output or "lehr up" in output, (command, output)
    assert listener.received == []


def test_server_of_the_home_gets_the_token_until_it_ends(own_home):
    with served(own_home) as (_, address):
        write_server_json(own_home, address, os.getpid())
        client = Client()
        assert client.runs() == []
        assert next(client.stream()).kind == "hello"
        with Client(address.replace("127.0.0.1", "localhost")) as named:
            assert named.cluster().gpus_total == 8
    with Listener(port=int(address.rpartition(":")[2])) as squatter:
        with pytest.raises(ServerUnavailable, match="the token was not sent"):
            client.runs()
        assert squatter.received == []
