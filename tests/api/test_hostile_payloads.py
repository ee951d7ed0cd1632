"""Hostile heartbeats, exits and reports of copies: each is answered, and harms its own run alone."""

from __future__ import annotations

import json
from typing import Any, get_args

import pytest
from pydantic import BaseModel

from lehr.control.exits import ExitNote, LastWord
from lehr.store import Store
from lehr.store.upkeep import backup, integrity
from lehr_api.routes import attempts
from lehr_testing import hostile
from lehr_testing.api import api_client, attempt_token, begin, finished, line, started
from lehr_testing.stores import run_spec

LOGGED = line("metrics", step=1, tokens=1, values={"loss": 2.0})


class Worker:
    def __init__(self, api: Any, client: Any) -> None:
        self.client = client
        self.run = api.store.runs.create(run_spec("one")).id
        self.attempt = begin(api.store, self.run)
        self.url = f"/api/v1/attempts/{self.attempt}"
        self.headers = {
            "Authorization": f"Bearer {attempt_token(self.run)}",
            "Lehr-Protocol": "1",
            "Content-Type": "application/json",
        }

    def write(self, data: bytes, offset: int) -> int:
        url, place = f"{self.url}/streams/events.jsonl", {"offset": offset}
        answer = self.client.put(url, params=place, content=data, headers=self.headers)
        assert answer.status_code == 200, answer.text
        return int(answer.json()["offset"])

    def post(self, what: str, body: bytes) -> Any:
        return self.client.post(f"{self.url}/{what}", content=body, headers=self.headers)


@pytest.mark.parametrize(
    "what",
    # A run for each of 300 exits takes long; test_attempt_exits.py has some odd ones on every change.
    ["heartbeat", "copies", pytest.param("exit", marks=pytest.mark.nightly)],
)
def test_hostile_payload_is_answered_and_harms_no_other_run(tmp_path, what):
    with api_client(tmp_path) as (api, client):
        healthy = [Worker(api, client), Worker(api, client)]
        ends = [one.write(started() + LOGGED, 0) for one in healthy]
        odd = Worker(api, client)
        odd.write(started(), 0)
        for name, body in hostile.messages(what):
            answer = odd.post(what, body)
            assert answer.status_code < 500, f"{name}: {answer.text[:500]}"
            if what == "exit" and answer.status_code == 200:
                page = client.get(f"/api/v1/runs/{odd.run}")
                assert page.status_code == 200, f"{name}: {page.text[:500]}"
                odd = Worker(api, client)
        for one, logged in zip(healthy, ends, strict=True):
            beat = one.post("heartbeat", json.dumps({"step": 1}).encode())
            assert (beat.status_code, beat.json()["fenced"]) == (200, False)
            end = one.write(finished(1), logged)
            body = {"exit": {"code": 0}, "sizes": {"events.jsonl": end}}
            assert one.post("exit", json.dumps(body).encode()).json()["closed"]
            assert client.get(f"/api/v1/runs/{one.run}").json()["state"] == "completed"
        home = api.store.home
    assert [found for found in integrity.check(home) if found.level == "error"] == []
    backup.rebuild(home)
    with Store.open(home) as store:
        for one in healthy:
            assert store.runs.get(one.run).state == "completed"
            assert store.series.read(one.run, "loss").y == [2.0]


def test_messages_have_every_field_of_their_schemas():
    def covers(value: Any, model: type[BaseModel]) -> None:
        assert set(value) == set(model.model_fields), model
        for name, field in model.model_fields.items():
            for inner in (field.annotation, *get_args(field.annotation)):
                if isinstance(inner, type) and issubclass(inner, BaseModel):
                    covers(value[name][0] if isinstance(value[name], list) else value[name], inner)

    covers(hostile.MESSAGES["heartbeat"], attempts.HeartbeatMessage)
    covers(hostile.MESSAGES["copies"], attempts.CopiesReport)
    covers(hostile.MESSAGES["exit"], attempts.ExitMessage)
    covers(hostile.MESSAGES["exit"]["exit"], ExitNote)
    assert set(hostile.MESSAGES["exit"]["exit"]["finished"]) == set(LastWord.model_fields)
