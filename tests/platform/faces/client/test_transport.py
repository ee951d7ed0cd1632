"""Requests of the client, their retries, and its handling of responses."""

import json
import subprocess
import sys
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import pytest

from lehr import Client
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
from lehr_testing.api import RUN_SPEC, documented_answer
from lehr_trainer import extras


class Scripted:
    """An HTTP server that answers from a list; the last answer stays."""

    def __init__(self, *answers):
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

        self.server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.address = f"http://127.0.0.1:{self.server.server_port}"
        threading.Thread(target=self.server.serve_forever, daemon=True).start()

    def close(self):
        self.server.shutdown()
        self.server.server_close()


@pytest.fixture
def scripted():
    made = []

    def make(*answers):
        made.append(Scripted(*answers))
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
    info = {"url": "http://127.0.0.1:7777", "pid": 1, "version": "1"}
    (tmp_path / "server.json").write_text(json.dumps(info))
    assert Client().server == "http://127.0.0.1:7777"
    monkeypatch.setenv("LEHR_SERVER", "http://10.0.0.9:80/")
    assert Client().server == "http://10.0.0.9:80"
    assert Client("http://127.0.0.1:1").server == "http://127.0.0.1:1"


@pytest.mark.parametrize("address", ["127.0.0.1:5347", "ftp://x", "http://", "x"])
def test_an_invalid_server_address_is_an_error(address):
    with pytest.raises(UserError, match="address"):
        Client(address)


def test_loopback_requests_bypass_proxies(scripted, monkeypatch):
    server = scripted((200, HEALTH))
    for name in ("HTTP_PROXY", "http_proxy", "ALL_PROXY"):
        monkeypatch.setenv(name, "http://127.0.0.1:9")
    assert Client(server.address, "t").health().status == "ok"


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


def test_missing_pandas_is_a_clear_error_only_for_frames():
    code = """
import sys
sys.modules["pandas"] = None
from lehr.faces.client.notebook import import_pandas
from lehr.errors import UserError
try:
    import_pandas("history()")
except UserError as error:
    print(error)
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert "history() needs pandas" in done.stdout
    assert extras.install("lehr[notebook]") in done.stdout


def test_clients_need_only_the_base_install_and_figures_need_plotly():
    code = """
import sys
for name in ("plotly", "numpy", "pandas", "torch", "ray", "fastapi", "sqlmodel", "wandb"):
    sys.modules[name] = None
from lehr import Client
Client("http://127.0.0.1:1", "t")
from lehr.faces.client import Run
from lehr.errors import UserError
try:
    Run.plot(None)
except UserError as error:
    print(error)
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert "plot() needs plotly" in done.stdout
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
