"""The hint for a server that does not answer fits the machine that shows it."""

from __future__ import annotations

import pytest

from lehr import Client
from lehr.errors import ServerUnavailable
from lehr.faces.client import problems
from lehr.faces.join import record
from lehr_testing.server import free_port

THERE = "http://198.51.100.1:5347"


@pytest.fixture(autouse=True)
def own_home(tmp_path, monkeypatch):
    monkeypatch.setenv("LEHR_HOME", str(tmp_path))
    for name in ("LEHR_SERVER", "LEHR_TOKEN"):
        monkeypatch.delenv(name, raising=False)
    return tmp_path


@pytest.mark.parametrize(
    "server", ["http://127.0.0.1:9", "http://localhost:9", "http://[::1]:9", "http://127.0.1.1:9"]
)
def test_server_of_this_machine_is_started_here(server):
    assert problems.no_answer(server, unknown_host=False) == problems.START
    assert problems.no_answer_in_time(server).endswith("Check: lehr doctor")


def test_server_of_another_machine_is_looked_for_there():
    cure = problems.no_answer(THERE, unknown_host=False)
    assert "on another machine, 198.51.100.1. Is it up? There: lehr status" in cure
    assert "is port 5347 open in firewalls" in cure
    assert "Is the address right?" in cure
    assert "Start it" not in cure
    assert "Check on 198.51.100.1: lehr doctor" in problems.no_answer_in_time(THERE)


@pytest.mark.parametrize(("url", "port"), [("https://a.example", 443), ("http://a.example", 80)])
def test_port_of_a_url_without_one_is_that_of_its_scheme(url, port):
    assert f"port {port} open" in problems.no_answer(url, unknown_host=False)


def test_name_that_cannot_be_resolved_is_no_question_of_firewalls():
    cure = problems.no_answer("http://nowhere.invalid:1", unknown_host=True)
    assert "cannot resolve nowhere.invalid" in cure
    assert "firewall" not in cure
    with pytest.raises(ServerUnavailable) as raised:
        Client("http://nowhere.invalid:1", "t").runs()
    assert raised.value.hint == cure


def test_client_gives_the_cure_for_the_servers_machine(monkeypatch):
    server = f"http://127.0.0.1:{free_port()}"
    with pytest.raises(ServerUnavailable) as here:
        Client(server, "t").runs()
    assert here.value.hint == problems.START
    monkeypatch.setattr(problems, "is_here", lambda url: url != server)
    with pytest.raises(ServerUnavailable) as there:
        Client(server, "t").runs()
    assert "There: lehr status" in there.value.hint


def test_machine_that_has_joined_is_told_of_its_server(own_home):
    with pytest.raises(ServerUnavailable) as fresh:
        Client()
    assert fresh.value.hint == problems.START
    joined = record.JoinRecord(THERE, "gpu-2", "t", 1, logical=True)
    record.write(own_home, joined)
    with pytest.raises(ServerUnavailable) as node:
        Client()
    assert f"a node of {THERE}" in node.value.hint
    assert f"lehr --server {THERE}" in node.value.hint
    assert "LEHR_TOKEN" in node.value.hint
