"""``lehr node`` against the real API: the printed command, the checks, and who may not join."""

from __future__ import annotations

import json
import shlex
import sys

import pytest

from lehr import home
from lehr.cli import main, output
from lehr.cluster.ray_access import RayAccess
from lehr.joining import record
from lehr_api.routes import cluster as routes
from lehr_testing.api import TOKEN, served


@pytest.fixture
def lehr(tmp_path, monkeypatch, capsys):
    """Runs `lehr node` as the entry point would, on a machine with a home of its own."""
    for name in ("SERVER", "TOKEN", "RUNS", "DATA", "JOIN_TOKEN"):
        monkeypatch.delenv(f"LEHR_{name}", raising=False)
    monkeypatch.setenv("LEHR_HOME", str(tmp_path / "machine"))
    monkeypatch.setenv("COLUMNS", "200")

    def run(*args):
        monkeypatch.setattr(sys, "argv", ["lehr", "node", *args])
        output.console.cache_clear()
        output.notes.cache_clear()
        code = 0
        try:
            main.run()
        except SystemExit as stop:
            code = stop.code
        shown = capsys.readouterr()
        return int(code or 0), shown.out, shown.err

    yield run
    output.console.cache_clear()
    output.notes.cache_clear()


@pytest.fixture
def server(tmp_path, monkeypatch):
    """The address of a server whose Ray cannot be reached."""
    access = RayAccess("127.0.0.1:1", "ray's token")
    monkeypatch.setattr(routes, "ray_access", lambda *_, **__: access)
    with served(tmp_path / "home") as (_, address):
        yield address


def write_home(where, url):
    where.mkdir(mode=0o700)
    (where / "token").write_text(TOKEN)
    (where / "token").chmod(0o600)
    home.write_server(where, home.ServerInfo(url, 1, "1.0"))


def test_token_is_printed_as_a_command_that_works(lehr, server, tmp_path, monkeypatch):
    write_home(tmp_path / "machine", "http://10.0.0.1:5347")
    code, shown, _ = lehr("token")
    assert code == 0
    words = shlex.split(shown)
    assert words[:4] == ["lehr", "node", "join", "http://10.0.0.1:5347"]
    monkeypatch.setenv("LEHR_HOME", str(tmp_path / "other"))
    found = json.loads(lehr("join", server, *words[4:], "--check", "--json")[1])
    assert found["node"]
    assert not found["joined"]


def test_server_of_one_machine_has_no_command_for_others(lehr, tmp_path):
    assert "no Lehr server is running" in lehr("token")[2]
    write_home(tmp_path / "machine", "http://127.0.0.1:5347")
    code, _, error = lehr("token")
    assert code == 2
    assert "other machines cannot reach this server" in error
    assert "--public-url" in error


def test_checks_are_listed_and_a_machine_with_a_bad_one_does_not_join(lehr, server, tmp_path):
    code, shown, _ = lehr("join", server, "--token", TOKEN, "--gpus", "2", "--name", "gpu-2")
    assert code == 1
    assert "127.0.0.1:1 cannot be reached: Connection refused" in shown
    assert "to fix before this machine can join" in shown
    assert record.read(tmp_path / "machine") is None


def test_wrong_token_and_wrong_options_are_errors_and_record_nothing(lehr, server, tmp_path):
    join = ("join", server, "--token", TOKEN, "--gpus", "2")
    assert "token is not this server's" in lehr("join", server, "--token", "lehr-join:9:0")[2]
    assert "--name 'a b' is not a node's name" in lehr(*join, "--name", "a b")[2]
    assert (
        "--interface nowhere0: no such network interface"
        in (lehr(*join, "--interface", "nowhere0")[2])
    )
    assert "--ca /nowhere.pem: no such file" in lehr(*join, "--ca", "/nowhere.pem")[2]
    assert record.read(tmp_path / "machine") is None


def test_machine_that_has_not_joined_cannot_leave(lehr):
    code, _, error = lehr("leave")
    assert code == 2
    assert "this machine has not joined a cluster" in error
