"""Tags and notes: kept, found, edited; and alerts of runs that were not opened."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from lehr.control.lifecycle import RunState
from lehr.faces.client import Client
from lehr_testing import rollouts
from lehr_testing.api import RUN_SPEC, SWEEP_SPEC, TOKEN, begin, end, ingest, line, served, started
from lehr_testing.cli import call
from lehr_testing.waiting import until


def submitted(client, **fields):
    return client.post("/api/v1/runs", json={"spec": {**RUN_SPEC, **fields}}).json()


def test_tags_are_replaced_and_runs_are_found_by_tag(client):
    run = submitted(client, tags=["omk"])
    path = f"/api/v1/runs/{run['id']}/tags"
    answer = client.put(path, json={"tags": ["fp8", "baseline", "fp8"]})
    assert answer.status_code == 200, answer.text
    assert answer.json()["tags"] == ["fp8", "baseline"]
    assert answer.json()["spec"]["tags"] == ["omk"]
    assert client.get("/api/v1/runs?tag=baseline").json()["total"] == 1
    assert client.get("/api/v1/runs?tag=omk").json()["total"] == 0
    client.put(path, json={"tags": ["fp8", "baseline"]})
    requests = [
        e for e in client.get(f"/api/v1/runs/{run['id']}/events").json() if e["kind"] == "request"
    ]
    assert [event["message"] for event in requests] == ["user requested tag: fp8, baseline"]


def test_tags_are_added_and_removed_and_the_others_stay(client):
    run = submitted(client, tags=["omk", "old"])
    path = f"/api/v1/runs/{run['id']}/tags"
    answer = client.post(path, json={"add": ["fp8", "omk"], "remove": ["old", "never-there"]})
    assert answer.status_code == 200, answer.text
    assert answer.json()["tags"] == ["omk", "fp8"]
    again = client.post(path, json={"add": ["fp8", "omk"], "remove": ["old", "never-there"]})
    assert again.json()["tags"] == ["omk", "fp8"]
    requests = [
        e for e in client.get(f"/api/v1/runs/{run['id']}/events").json() if e["kind"] == "request"
    ]
    assert len(requests) == 1
    many = client.post(path, json={"add": [f"t{n}" for n in range(29)]})
    assert (many.status_code, many.json()["code"]) == (422, "invalid")
    assert "at most 30" in many.json()["detail"]
    assert client.get(f"/api/v1/runs/{run['id']}").json()["tags"] == ["omk", "fp8"]


@pytest.mark.parametrize("tag", ["two words", "a,b", "", "x" * 61])
def test_tag_that_no_filter_can_match_is_rejected(client, tag):
    run = submitted(client)
    answer = client.put(f"/api/v1/runs/{run['id']}/tags", json={"tags": [tag]})
    assert answer.status_code == 422
    assert client.get(f"/api/v1/runs/{run['id']}").json()["tags"] == []


def test_ended_run_is_diagnosed_without_being_opened(api):
    api_, client = api
    run = submitted(client)
    rounds = api_.services.presenter.rounds
    rounds.start()
    try:
        attempt = begin(api_.store, run["id"])
        climbing = b"".join(
            line(
                "metrics", step=s, tokens=s * 256, values={"train/loss": 3.0 if s < 20 else 3.0 + s}
            )
            for s in range(1, 81)
        )
        ingest(api_.store, attempt, started() + climbing)
        end(api_.store, run["id"], RunState.COMPLETED)
        until(
            lambda: client.get("/api/v1/runs").json()["items"][0]["alerts"],
            within_s=60,
            what="the list to show the alert",
        )
        alerts = client.get(f"/api/v1/runs/{run['id']}/alerts").json()
        since = {alert["code"]: alert["step"] for alert in alerts}
        assert 20 <= since["diverging"] <= 40, alerts
    finally:
        rounds.stop()


def test_tag_that_is_no_text_is_rejected_and_changes_nothing(client):
    run = submitted(client, tags=["omk"])
    path = f"/api/v1/runs/{run['id']}/tags"
    headers = {"Content-Type": "application/json"}
    answer = client.put(path, content=r'{"tags": ["fp8", "a\ud800"]}', headers=headers)
    assert answer.status_code == 422
    assert r"'\ud800': half of a surrogate pair" in answer.json()["detail"]
    assert client.get(f"/api/v1/runs/{run['id']}").json()["tags"] == ["omk"]


@pytest.fixture
def lehr(tmp_path: Path):
    with served(tmp_path / "home") as (_, address), Client(address, TOKEN) as client:
        yield client


@pytest.fixture
def command(lehr, tmp_path):
    def run(*args: str, stdin: str | None = None):
        return call(*args, cwd=tmp_path, stdin=stdin, LEHR_SERVER=lehr.server, LEHR_TOKEN=TOKEN)

    return run


def test_note_begins_as_the_specs_and_can_be_replaced_and_found(lehr) -> None:
    first = lehr.submit({**RUN_SPEC, "notes": "warmup of 10 %"})
    second = lehr.submit({**RUN_SPEC, "name": "two"})
    assert (first.note, second.note) == ("warmup of 10 %", "")
    second.set_note("  Diverged at 400, see https://example.org/x  ")
    assert second.note == "Diverged at 400, see https://example.org/x"
    assert [run.name for run in lehr.runs(note="diverged")] == ["two"]
    assert [run.name for run in lehr.runs(note="10 %")] == ["one"]
    assert second.detail.spec["notes"] == ""
    assert second.set_note("").note == ""
    assert lehr.runs(note="diverged") == []


def test_sweeps_and_rollouts_have_notes_too(lehr) -> None:
    sweep = lehr.sweep({**SWEEP_SPEC, "notes": "grid"})
    rollout = lehr.rollout(rollouts.plain(name="staged"))
    assert sweep.note == "grid"
    sweep.set_note("the second grid")
    rollout.set_note("before the long run")
    assert [one.id for one in lehr.sweeps(note="second")] == [sweep.id]
    assert [one.id for one in lehr.rollouts(note="LONG")] == [rollout.id]
    assert lehr.sweeps(note="no such") == []
    assert {run.note for run in sweep.runs()} == {""}


def test_command_shows_replaces_and_removes_a_note(lehr, command) -> None:
    lehr.submit(RUN_SPEC)
    assert "one has no note" in command("note", "one").stdout
    assert command("note", "one", "too hot").stdout.strip() == "too hot"
    assert command("note", "one", "-", stdin="two\nlines\n").stdout == "two\nlines\n"
    assert json.loads(command("note", "one", "--json").stdout)["note"] == "two\nlines"
    assert "one" in command("ls", "--note", "LINES").stdout
    assert "No run matches" in command("ls", "--note", "hot").stderr
    assert "the note is empty" in command("note", "one", " ").stderr
    command("note", "one", "--clear")
    assert lehr.run("one").note == ""
    assert "both given" in command("note", "one", "x", "--clear").stderr
