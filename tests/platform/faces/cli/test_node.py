"""``lehr node`` against the real API: the printed command, the checks, and who may not join."""

from __future__ import annotations

import json
import shlex
from dataclasses import replace

import pytest

from lehr.app.services import nodes
from lehr.base import home, signed_tokens
from lehr.cluster.ray_head import RayAccess
from lehr.faces.join import record
from lehr.node.stop import End, StoppedTrainings
from lehr.schemas.cluster import ClusterView
from lehr_api.routes import cluster as routes
from lehr_testing.api import TOKEN, FakeDispatcher, served
from lehr_testing.cli import call
from lehr_testing.server import free_port
from lehr_trainer.contract.layout import RUNS_MARKER

TLS = "https://lehr.example:5347"


@pytest.fixture
def lehr(tmp_path):
    """Runs `lehr node` on a machine with a home of its own."""

    def run(*args, **environment):
        own = {"LEHR_HOME": str(tmp_path / "machine"), "LEHR_JOIN_TOKEN": TOKEN}
        machine = own | {"COLUMNS": "200"}
        done = call("node", *args, cwd=tmp_path, **(machine | environment))
        return done.returncode, done.stdout, done.stderr

    return run


@pytest.fixture
def server(tmp_path, monkeypatch):
    """The address of a server whose Ray cannot be reached."""
    access = RayAccess("127.0.0.1:1", "ray's token")
    monkeypatch.setattr(routes, "ray_access", lambda *_, **__: access)
    with served(tmp_path / "home") as (_, address):
        yield address


def write_home(where, url, ca_file=None):
    where.mkdir(mode=0o700)
    (where / "token").write_text(TOKEN)
    (where / "token").chmod(0o600)
    home.write_server(where, home.ServerInfo(url, 1, "1.0", ca_file))


def test_token_is_printed_as_a_command_that_works(lehr, server, tmp_path):
    write_home(tmp_path / "machine", "http://10.0.0.1:5347")
    code, shown, _ = lehr("token")
    assert code == 0
    variable, *words = shlex.split(shown)
    # Arguments are in the list of processes, which every user of a machine can read.
    assert words == ["lehr", "node", "join", "http://10.0.0.1:5347"]
    name, _, value = variable.partition("=")
    other = {"LEHR_HOME": str(tmp_path / "other"), name: value}
    found = json.loads(lehr("join", server, "--check", "--json", **other)[1])
    assert found["node"]
    assert not found["joined"]
    assert "a token is required" in lehr("join", server, "--check", LEHR_JOIN_TOKEN="")[2]


@pytest.mark.parametrize(
    ("url", "ca_file", "words", "about"),
    [
        (TLS, "/etc/lehr/our ca.pem", [TLS, "--ca", "our ca.pem"], "copy /etc/lehr/our ca.pem to"),
        (TLS, None, ["join", TLS], "add: --ca FILE"),
        ("http://lehr.example:5347", None, ["http://lehr.example:5347"], ""),
    ],
)
def test_command_says_what_an_own_authority_needs(lehr, tmp_path, url, ca_file, words, about):
    write_home(tmp_path / "machine", url, ca_file)
    _, shown, beside = lehr("token")
    assert shlex.split(shown)[-len(words) :] == words
    assert about in beside
    assert bool(beside) == bool(about)
    assert json.loads(lehr("token", "--json")[1])["ca_file"] == ca_file


def test_checks_are_listed_and_a_machine_with_a_bad_one_does_not_join(lehr, server, tmp_path):
    code, shown, _ = lehr("join", server, "--gpus", "2", "--name", "gpu-2")
    assert code == 1
    assert "127.0.0.1:1 cannot be reached: Connection refused" in shown
    assert "to fix before this machine can join" in shown
    assert record.read(tmp_path / "machine") is None


def test_check_changes_nothing_on_the_machine(lehr, server, tmp_path, monkeypatch):
    """Neither in its home, nor in the folders that it would use, nor where the server has them."""
    shares = FakeDispatcher().cluster().nodes[0].model_copy(update={"runs_folder": "a" * 32})
    view = ClusterView(state="up", nodes=[shares], gpus_total=8, gpus_busy=0)
    monkeypatch.setattr(FakeDispatcher, "cluster", lambda _: view)
    of_server = tmp_path / "home" / "runs"
    of_server.mkdir(exist_ok=True)
    asked = []
    join = nodes.join
    monkeypatch.setattr(
        nodes, "join", lambda *given, **named: asked.append(named["check"]) or join(*given, **named)
    )
    own = ("--runs", str(tmp_path / "runs"), "--data", str(tmp_path / "data"))
    for options in ((), own):
        check = ("join", server, "--gpus", "2", "--check", *options)
        code, shown, _ = lehr(*check)
        assert code == 1
        assert "127.0.0.1:1 cannot be reached" in shown
        assert "this machine's own" in shown
    assert [path.name for path in tmp_path.iterdir()] == ["home"]
    assert not (of_server / RUNS_MARKER).exists()
    assert asked == [True, True]


def test_wrong_token_and_wrong_options_are_errors_and_record_nothing(lehr, server, tmp_path):
    join = ("join", server, "--gpus", "2")
    assert "token is not this server's" in lehr(*join, LEHR_JOIN_TOKEN="lehr-join:9:0")[2]
    assert "--name 'a b' is not a node's name" in lehr(*join, "--name", "a b")[2]
    assert (
        "--interface nowhere0: no such network interface"
        in (lehr(*join, "--interface", "nowhere0")[2])
    )
    code, _, error = lehr(*join, "--interface", "lo")
    assert code == 2
    assert "--interface lo: other machines cannot reach 127.0.0.1" in error
    assert "This machine has: " in error
    assert "lo (" not in error
    assert "--ca /nowhere.pem: no such file" in lehr(*join, "--ca", "/nowhere.pem")[2]
    assert record.read(tmp_path / "machine") is None


def test_machine_that_has_not_joined_cannot_leave(lehr):
    code, _, error = lehr("leave")
    assert code == 2
    assert "this machine has not joined a cluster" in error
    assert "LEHR_HOME" in error


def test_machine_of_the_server_cannot_leave_and_is_told_what_it_can_do(lehr, tmp_path):
    (home.node_dir(tmp_path / "machine") / "alpha" / "attempts").mkdir(parents=True)
    (tmp_path / "machine" / "lehr.db").touch()
    code, _, error = lehr("leave")
    assert code == 2
    assert "the home of a server" in error
    assert "lehr node exclude alpha" in error
    assert "lehr down" in error


@pytest.fixture
def joined(server, tmp_path):
    """How a machine has joined the server, as node n1, with options."""
    made = record.JoinRecord(
        server,
        "n1",
        signed_tokens.node_token(TOKEN, "n1"),
        2,
        logical=True,
        runs_dir="/mnt/our runs",
        data_dir=str(tmp_path / "machine" / "data"),
    )
    record.write(tmp_path / "machine", made)
    return made


@pytest.mark.parametrize("keeps_silent", [False, True])
def test_machine_that_leaves_names_the_runs_that_it_stopped_and_how_to_come_back(
    lehr, joined, tmp_path, monkeypatch, keeps_silent
):
    """Their ids, if the server cannot be asked for their names."""
    view = FakeDispatcher().cluster()
    view.nodes[0].gpus[0].run_id, view.nodes[0].gpus[0].run_name = "efgh5678", "wide"
    monkeypatch.setattr(FakeDispatcher, "cluster", lambda _: view)
    stopped = StoppedTrainings({"efgh5678-1": End.SAVED})
    monkeypatch.setattr("lehr.node.stop.stop_all", lambda *_, **__: stopped)
    if keeps_silent:
        url = f"http://127.0.0.1:{free_port()}"
        record.write(tmp_path / "machine", replace(joined, server_url=url))
    code, shown, _ = lehr("leave")
    assert code == 0
    name = "efgh5678" if keeps_silent else "wide"
    assert f"  stopped: {name}\n" in shown
    assert ("! The server was not informed" in shown) == keeps_silent
    assert "To bring it back: lehr node token" in shown
    assert record.read(tmp_path / "machine") is None


def test_joining_again_waits_until_the_old_node_is_gone(
    lehr, server, joined, tmp_path, monkeypatch
):
    """What the server still has of the old one does not count as the new one."""
    seen = iter([True, True, False, False, True])
    happened = []

    def is_member(_):
        happened.append(next(seen))
        return happened[-1]

    monkeypatch.setattr("lehr.faces.cli.join._is_member", is_member)
    monkeypatch.setattr("lehr.faces.join.checks.check_machine", lambda *_: [])
    monkeypatch.setattr("lehr.faces.join.daemon.stop", lambda _: True)
    monkeypatch.setattr("lehr.faces.join.daemon.start", lambda _: happened.append("started"))
    runs = str(tmp_path / "runs")
    (tmp_path / "machine" / "join" / "node.json").unlink()
    join = ("join", server, "--name", "n9", "--gpus", "2", "--runs", runs)
    code, shown, _ = lehr(*join)
    assert code == 0
    assert "n9 has joined" in shown
    assert happened == [True, True, False, "started", False, True]
