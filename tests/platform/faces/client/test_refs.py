"""Which of several with one name a verb takes, and how a submission names the others."""

from __future__ import annotations

import json

import pytest

from lehr import Client
from lehr.control.lifecycle import RunState
from lehr.errors import Conflict, ServerUnavailable
from lehr.faces.client import problems
from lehr.faces.join import record
from lehr.specs import load_spec
from lehr_testing import cli, seeding
from lehr_testing.api import RUN_SPEC, TOKEN, begin, end, ingest, served, started
from lehr_testing.server import free_port

WAITS = None


@pytest.fixture
def server(tmp_path):
    with served(tmp_path / "home") as (api, address), Client(address, TOKEN) as client:
        yield api.store, client


def runs_of(store, *states, name="first"):
    """Create runs of one name, the oldest first; return their ids. WAITS: never started."""
    made = []
    for state in states:
        run = store.runs.create(load_spec({**RUN_SPEC, "name": name}))
        made.append(run.id)
        if state is not WAITS:
            ingest(store, begin(store, run.id), started())
            if state != RunState.RUNNING:
                end(store, run.id, state)
    return made


@pytest.mark.parametrize(
    ("verb", "older", "newest"),
    [
        ("cancel", RunState.RUNNING, RunState.FAILED),
        ("pause", RunState.RUNNING, RunState.COMPLETED),
        ("delete", RunState.COMPLETED, RunState.RUNNING),
        ("retry", RunState.FAILED, RunState.COMPLETED),
        ("compare", RunState.COMPLETED, WAITS),
        ("seeds", RunState.COMPLETED, WAITS),
    ],
)
def test_verb_takes_the_one_it_can_act_on_not_the_newest(server, verb, older, newest):
    store, client = server
    expected, last = runs_of(store, older, newest)
    assert client.run("first", verb).id == client.find_any("first", verb).id == expected
    assert client.run("first").id == last
    assert client.run(last, verb).id == last


def test_run_that_trains_comes_before_a_sweep_of_its_name_that_ended(server):
    store, client = server
    sweep, (trial,) = seeding.create_sweep(store, seeding.lr_sweep("first", [1e-3]))
    (run,) = runs_of(store, RunState.RUNNING)
    assert len({type(one) for one in client.named("first")}) == 2
    with pytest.raises(Conflict):
        client.find("first", "cancel")
    seeding.start(store, trial).end(RunState.COMPLETED, 1)
    assert client.find("first", "cancel").id == run
    assert client.find("first").id == sweep.id


def test_several_that_fit_are_listed_with_what_to_type_and_nothing_is_done(server, tmp_path):
    store, client = server
    one, other, done = runs_of(store, RunState.RUNNING, WAITS, RunState.COMPLETED)
    refused = cli.call(
        *("--server", client.server, "cancel", "first"), cwd=tmp_path, LEHR_TOKEN=TOKEN
    )
    assert refused.returncode == 2
    assert f"lehr cancel {one}    run, running, " in refused.stderr
    assert f"lehr cancel {other}    run, queued, " in refused.stderr
    assert done not in refused.stderr
    assert [store.runs.get(run).desired for run in (one, other)] == ["run", "run"]


def test_submission_names_what_has_its_name_already(server, tmp_path):
    _, client = server
    (tmp_path / "run.yaml").write_text(json.dumps({**RUN_SPEC, "name": "first"}))
    call = ("--server", client.server, "submit", "run.yaml")
    assert "Another" not in cli.call(*call, cwd=tmp_path, LEHR_TOKEN=TOKEN).stderr
    earlier = client.run("first").id
    said = cli.call(*call, cwd=tmp_path, LEHR_TOKEN=TOKEN).stderr
    assert f"Another first exists: {earlier} (run, queued, " in said
    assert f"This one is {client.run('first').id}." in said


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
