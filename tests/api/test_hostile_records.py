"""Hostile records over HTTP: every answer has a reason, and none is a server error."""

from __future__ import annotations

import pytest

from lehr_testing import hostile
from lehr_testing.api import RUN_SPEC, api_client, attempt_token, begin, finished, line, started

PAGES = ("", "/metrics", "/checkpoints", "/alerts", "/events", "/samples", "/logs", "/export")


@pytest.mark.parametrize("kind", hostile.KINDS)
def test_hostile_record_never_causes_a_server_error(tmp_path, kind):
    with api_client(tmp_path) as (api, client):
        run = client.post("/api/v1/runs", json={"spec": RUN_SPEC}).json()["id"]
        attempt = begin(api.store, run)
        url = f"/api/v1/attempts/{attempt}"
        headers = {"Authorization": f"Bearer {attempt_token(run)}", "Lehr-Protocol": "1"}

        def put(data: bytes, what: str) -> None:
            answer = client.put(
                f"{url}/streams/events.jsonl",
                params={"offset": api.store.streams.sizes(attempt).get("events.jsonl", 0)},
                content=data,
                headers=headers,
            )
            assert answer.status_code == 200, f"{what}: {answer.text}"

        put(started(), "a sound beginning")
        for what, text in hostile.lines(kind):
            put(text, what)
        api.store.event_applier.apply(attempt)
        for page in PAGES:
            answer = client.get(f"/api/v1/runs/{run}{page}", params={"format": "jsonl"})
            assert answer.status_code < 500, f"{page}: {answer.text}"
        put(line("metrics", step=1000, tokens=1, values={"last": 1.0}) + finished(1000), "an end")
        sizes = api.store.streams.sizes(attempt)
        exit_ = {"code": 0, "signal": None, "ended_at": 1.0, "reason": ""}
        answer = client.post(f"{url}/exit", json={"exit": exit_, "sizes": sizes}, headers=headers)
        assert answer.json()["closed"], answer.text
        assert client.get(f"/api/v1/runs/{run}").json()["state"] == "completed"
        assert api.store.series.read(run, "last").y == [1.0]
