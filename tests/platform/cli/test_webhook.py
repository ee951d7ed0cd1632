"""``lehr webhook`` with the real API and a real listener."""

from __future__ import annotations

import http.server
import json
import threading
from pathlib import Path

import pytest

from lehr_testing.api import TOKEN, served
from lehr_testing.cli import call


class Listener(http.server.BaseHTTPRequestHandler):
    def do_POST(self) -> None:
        self.server.got.append(json.loads(self.rfile.read(int(self.headers["Content-Length"]))))
        self.send_response(204)
        self.end_headers()

    def log_message(self, *_: object) -> None: ...


@pytest.fixture
def listener():
    server = http.server.HTTPServer(("127.0.0.1", 0), Listener)
    server.got = []
    threading.Thread(target=server.serve_forever, daemon=True).start()
    yield server
    server.shutdown()
    server.server_close()


@pytest.fixture
def lehr(tmp_path: Path):
    with served(tmp_path / "home", webhook_hosts=("localhost",)) as (_, address):

        def run(*args: str, stdin: str | None = None):
            return call(
                "webhook", *args, cwd=tmp_path, stdin=stdin, LEHR_SERVER=address, LEHR_TOKEN=TOKEN
            )

        yield run


def test_webhook_is_added_from_standard_input_tested_listed_and_removed(lehr, listener) -> None:
    url = f"http://localhost:{listener.server_port}/secret"
    assert "There is no webhook" in lehr("ls").stdout
    added = lehr("add", "team", "-", stdin=f"{url}\n")
    assert added.returncode == 0, added.stderr
    assert "team sends to localhost." in added.stdout
    assert json.loads(lehr("ls", "--json").stdout) == {
        "webhooks": [{"name": "team", "host": "localhost"}]
    }
    tested = lehr("test", "team")
    assert (tested.returncode, tested.stdout.strip()) == (0, "localhost took the message.")
    assert [body["event"] for body in listener.got] == ["test"]
    assert "secret" not in added.stdout + lehr("ls").stdout
    assert lehr("rm", "team").returncode == 0
    missing = lehr("test", "team")
    assert missing.returncode != 0
    assert "There is no webhook 'team'." in missing.stderr


def test_address_inside_the_network_is_refused_when_it_is_tested(lehr, listener) -> None:
    lehr("add", "local", f"http://127.0.0.1:{listener.server_port}/x")
    refused = lehr("test", "local")
    assert refused.returncode != 0
    assert "an address inside the server's network" in refused.stderr
    assert "LEHR_WEBHOOK_HOSTS" in refused.stderr
    assert listener.got == []
