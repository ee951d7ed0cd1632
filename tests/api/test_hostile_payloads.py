"""Hostile heartbeats, exits and reports of copies: each is answered, and harms its own run alone."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import pytest

from lehr.store import Store
from lehr.store.maintenance import backup, integrity
from lehr_testing import hostile
from lehr_testing.api import api_client, attempt_token, begin, finished, line, started
from lehr_testing.stores import run_spec

PATH = "attempt-1/checkpoints/step-00000005"
EXIT = {
    "code": 1,
    "signal": None,
    "ended_at": 1_760_000_000.0,
    "reason": "exited",
    "detail": "",
    "log_tail": "",
    "node": "n1",
    "finished": {"step": 3, "outcome": "failed", "cause": "error", "message": "so"},
}
SOUND: dict[str, dict[str, Any]] = {
    "heartbeat": {
        "boot_id": "b",
        "pid": 1,
        "node_rank": 0,
        "sizes": {"events.jsonl": 1},
        "launcher_alive": True,
        "step": 1,
        "elapsed_s": 1.0,
    },
    "exit": {"exit": EXIT, "node_rank": 0, "sizes": {"events.jsonl": 0}},
    "copies": {"copies": [{"path": PATH, "url": "s3://b/x", "state": "there", "error": None}]},
}
LOGGED = line("metrics", step=1, tokens=1, values={"loss": 2.0})
_MARK = "@here@"


def places(value: Any) -> Iterator[tuple[Any, ...]]:
    """Yield the path of every value in a payload: containers, and what is in them."""
    yield ()
    if isinstance(value, dict | list):
        for key, inner in value.items() if isinstance(value, dict) else enumerate(value):
            for path in places(inner):
                yield (key, *path)


def marked(value: Any, path: tuple[Any, ...]) -> Any:
    """Return the payload with a mark in that place."""
    if not path:
        return _MARK
    key, *rest = path
    if isinstance(value, list):
        return [marked(v, tuple(rest)) if n == key else v for n, v in enumerate(value)]
    return {k: marked(v, tuple(rest)) if k == key else v for k, v in value.items()}


def payloads(what: str) -> Iterator[tuple[str, bytes]]:
    """Yield each payload with one hostile value in one place, and the name of both."""
    for path in places(SOUND[what]):
        text = json.dumps(marked(SOUND[what], path))
        for value in hostile.VALUES:
            yield f"{path} = {value[:40]}", text.replace(f'"{_MARK}"', value).encode()


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
        for name, body in payloads(what):
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
