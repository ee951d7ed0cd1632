"""Requests of the client, their retries, and its handling of responses."""

from __future__ import annotations

import contextlib
import json
import os
import subprocess
import sys
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest

from lehr import Client
from lehr.base import home
from lehr.errors import (
    Conflict,
    Fenced,
    InternalError,
    NotFound,
    PlanRefused,
    ServerUnavailable,
    Unauthorized,
    UserError,
)
from lehr.faces.client.problems import problem_error
from lehr.faces.client.transport import Transport
from lehr_testing.api import RUN_SPEC, TOKEN, documented_answer, served
from lehr_trainer import extras


class Scripted:
    """An HTTP server that answers from a list; the last answer stays."""

    def __init__(self, *answers, port=0):
        self.answers = list(answers)
        self.requests = []
        scripted = self

        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def handle_any(self):
                body = self.rfile.read(int(self.headers.get("Content-Length") or 0))
                scripted.requests.append((self.command, self.path, dict(self.headers), body))
                several = len(scripted.answers) > 1
                answer = scripted.answers.pop(0) if several else scripted.answers[0]
                if answer is None:  # The connection breaks before an answer.
                    self.close_connection = True
                    return
                status, payload, headers = (*answer, {})[:3]
                data = payload if isinstance(payload, bytes) else json.dumps(payload).encode()
                self.send_response(status)
                self.send_header("Content-Length", str(len(data)))
                for name, value in headers.items():
                    self.send_header(name, value)
                self.end_headers()
                self.wfile.write(data)

            do_GET = do_POST = handle_any  # noqa: N815 - the library's names

            def log_message(self, *_):
                pass

        self.server = ThreadingHTTPServer(("127.0.0.1", port), Handler)
        self.port = self.server.server_port
        self.address = f"http://127.0.0.1:{self.port}"
        threading.Thread(target=self.server.serve_forever, daemon=True).start()

    def close(self):
        self.server.shutdown()
        self.server.server_close()


@pytest.fixture
def scripted():
    made = []

    def make(*answers, port=0):
        made.append(Scripted(*answers, port=port))
        return made[-1]

    yield make
    for one in made:
        one.close()


HEALTH = {"status": "ok", "version": "1", "protocol": 1}


def test_read_is_retried_after_a_broken_connection_or_a_busy_server(scripted):
    server = scripted(None, (503, {"detail": "x"}, {"Retry-After": "0"}), (200, HEALTH))
    assert Client(server.address, "t").health().version == "1"
    assert len(server.requests) == 3


def test_a_verb_without_a_key_is_not_sent_twice(scripted):
    server = scripted(None)
    run = Transport(server.address, "t", timeout_s=10)
    with pytest.raises(ServerUnavailable):
        run.post("/runs/x/cancel")
    assert len(server.requests) == 1


def test_a_submission_is_sent_again_with_the_same_key(scripted):
    server = scripted(None, (201, documented_answer("RunDetail")))
    # Its code is named, so that nothing but the submission is sent.
    Client(server.address, "t").submit({**RUN_SPEC, "code": {"digest": "0" * 64}})
    first, second = server.requests
    key = {k.lower(): v for k, v in first[2].items()}["idempotency-key"]
    assert key == {k.lower(): v for k, v in second[2].items()}["idempotency-key"]
    assert first[3] == second[3]
    assert len(key) >= 16


def test_the_server_is_found_by_argument_environment_or_file(tmp_path, monkeypatch):
    monkeypatch.setenv("LEHR_HOME", str(tmp_path))
    monkeypatch.delenv("LEHR_SERVER", raising=False)
    write_server_json(tmp_path, "http://127.0.0.1:7777")
    assert Client().server == "http://127.0.0.1:7777"
    monkeypatch.setenv("LEHR_SERVER", "http://10.0.0.9:80/")
    assert Client().server == "http://10.0.0.9:80"
    assert Client("http://127.0.0.1:1").server == "http://127.0.0.1:1"


@pytest.mark.parametrize("address", ["127.0.0.1:5347", "ftp://x", "http://", "x"])
def test_an_invalid_server_address_is_an_error(address):
    with pytest.raises(UserError, match="address"):
        Client(address)


def test_loopback_requests_bypass_proxies_and_ask_for_no_compression(scripted, monkeypatch):
    server = scripted((200, HEALTH))
    for name in ("HTTP_PROXY", "http_proxy", "ALL_PROXY"):
        monkeypatch.setenv(name, "http://127.0.0.1:9")
    assert Client(server.address, "t").health().status == "ok"
    assert server.requests[0][2]["Accept-Encoding"] == "identity"


@pytest.mark.parametrize(
    ("status", "code", "kind"),
    [
        (422, "invalid", UserError),
        (422, "invalid_request", UserError),
        (404, "not_found", NotFound),
        (409, "conflict", Conflict),
        (422, "plan_refused", PlanRefused),
        (401, "unauthorized", Unauthorized),
        (410, "fenced", Fenced),
        (500, "internal", InternalError),
        (418, "new_code", UserError),
        (599, "new_code", InternalError),
        (503, "store_unavailable", ServerUnavailable),
    ],
)
def test_a_problem_answer_raises_its_exception(status, code, kind):
    body = {"status": status, "title": "t", "detail": "what", "code": code, "hint": "try"}
    error = problem_error(status, json.dumps(body).encode())
    assert type(error) is kind
    assert str(error) == "what\n  try"


def test_clients_need_only_the_base_install_and_frames_name_theirs():
    code = """
import sys
for name in ("numpy", "pandas", "torch", "ray", "fastapi", "sqlmodel", "wandb"):
    sys.modules[name] = None
from lehr import Client
Client("http://127.0.0.1:1", "t")
from lehr.faces.client.notebook import import_pandas
from lehr.errors import UserError
try:
    import_pandas("this()")
except UserError as error:
    print(error)
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert "this() needs pandas" in done.stdout
    assert extras.install("lehr[notebook]") in done.stdout


def test_provenance_has_the_commit_but_no_secrets(tmp_path, monkeypatch):
    from lehr.faces.client.submission import provenance

    assert provenance(tmp_path)["git"] is None

    def git(*arguments):
        subprocess.run(
            ["git", "-c", "user.name=n", "-c", "user.email=e", *arguments],
            cwd=tmp_path,
            check=True,
            capture_output=True,
        )

    git("init", "-q", "-b", "main")
    (tmp_path / "a").write_text("1\n")
    git("add", ".")
    git("commit", "-qm", "m")
    git("remote", "add", "origin", "https://me:secret@example.org/x.git")
    found = provenance(tmp_path)["git"]
    assert len(found["commit"]) == 40
    assert found["dirty"] is False
    assert found["remote"] == "https://example.org/x.git"
    (tmp_path / "a").write_text("2\n")
    found = provenance(tmp_path)["git"]
    assert found["dirty"] is True
    assert "+2" in found["diff"]


LEHR = str(Path(sys.executable).parent / "lehr")


def received_a_token(server) -> bool:
    return any("authorization" in str(request).lower() for request in server.requests)


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
def listener(scripted):
    """Another program on the loopback that records what it receives."""
    return scripted((200, HEALTH))


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
    assert listener.requests == []


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
    assert listener.requests == []


def test_a_port_that_is_not_the_homes_gets_no_token_unless_it_is_given(
    own_home, listener, monkeypatch
):
    write_server_json(own_home, f"http://127.0.0.1:{listener.port + 1}", os.getpid())
    with home.lock(own_home):
        Client(listener.address).health()
        assert not received_a_token(listener)
        # Whoever names both has decided, as for a forwarded port of another machine or container.
        monkeypatch.setenv("LEHR_TOKEN", TOKEN)
        Client(listener.address).health()
    assert received_a_token(listener)


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
    assert listener.requests == []


def test_server_of_the_home_gets_the_token_until_it_ends(own_home, scripted):
    with served(own_home) as (_, address):
        write_server_json(own_home, address, os.getpid())
        client = Client()
        assert client.runs() == []
        assert next(client.stream()).kind == "hello"
        with Client(address.replace("127.0.0.1", "localhost")) as named:
            assert named.cluster().gpus_total == 8
    squatter = scripted((200, HEALTH), port=int(address.rpartition(":")[2]))
    with pytest.raises(ServerUnavailable, match="the token was not sent"):
        client.runs()
    assert squatter.requests == []
