"""Text of a worker and of a user that is markup: shown as text, never as markup."""

from __future__ import annotations

import json

import pytest

from lehr.control.lifecycle import RunState
from lehr_testing.api import (
    RUN_SPEC,
    TOKEN,
    api_client,
    attempt_token,
    begin,
    end,
    ingest,
    line,
    metrics,
    started,
)

MARKUP = "<script>alert(1)</script><img src=x onerror=alert(1)>\"'&lt;"
PAGES = ("", "/metrics", "/alerts", "/events", "/samples", "/logs", "/checkpoints", None)


@pytest.fixture
def scene(tmp_path, caplog):
    spec = {**RUN_SPEC, "notes": MARKUP, "env": {"SECRET": "value-of-a-secret"}}
    with api_client(tmp_path / "home") as (api, client):
        body = {"spec": spec, "provenance": {"command": MARKUP, "git": {"diff": MARKUP}}}
        run = client.post("/api/v1/runs", json=body).json()["id"]
        attempt = begin(api.store, run)
        notice = {"message": MARKUP, "name": MARKUP, "text": MARKUP}
        ingest(
            api.store,
            attempt,
            started()
            + metrics(1, 3)
            + line("metrics", step=4, tokens=4, values={MARKUP: 1.0, f"train/{MARKUP}": 2.0})
            + line("evaluation", step=4, tokens=4, values={f"val/{MARKUP}": 1.0}, **notice)
            + line("notice", step=4, **notice)
            + line("warning", step=4, **notice)
            + line(MARKUP, step=4, **notice),
        )
        ingest(api.store, attempt, MARKUP.encode() + b"\n", "rank-0.log")
        api.store.event_applier.apply(attempt)
        end(api.store, run, RunState.FAILED, MARKUP)
        client.put(f"/api/v1/runs/{run}/tags", json={"tags": ["<script>alert(1)</script>"]})
        yield client, run
        assert TOKEN not in caplog.text
        assert attempt_token(run) not in caplog.text


@pytest.mark.parametrize("page", PAGES)
def test_markup_in_any_text_of_a_run_stays_text(scene, page):
    client, run = scene
    answer = client.get(f"/api/v1/reports/{run}" if page is None else f"/api/v1/runs/{run}{page}")
    assert answer.status_code == 200, answer.text
    assert answer.headers["x-content-type-options"] == "nosniff"
    kind = answer.headers["content-type"]
    if page is None:
        assert kind.startswith("text/html")
        assert "&lt;script&gt;" in answer.text  # It does show the text.
        assert "<script" not in answer.text
        assert "<img" not in answer.text
        assert "script" not in answer.headers["content-security-policy"]
        assert "value-of-a-secret" not in answer.text
    else:
        assert kind == "application/json"
        assert answer.headers["content-security-policy"].startswith("default-src 'none'")
        json.loads(answer.text)


def test_markup_in_a_log_stays_text(scene):
    client, run = scene
    answer = client.get(f"/api/v1/runs/{run}/logs/rank-0.log")
    assert answer.headers["content-type"] == "application/json"
    assert answer.json()["text"] == MARKUP + "\n"


def test_error_that_repeats_markup_is_no_page(scene):
    client, _ = scene
    for url in (f"/api/v1/runs/{MARKUP}", f"/{MARKUP}", f"/static/{MARKUP}", f"/runs/{MARKUP}"):
        answer = client.get(url)
        assert "<script>alert" not in answer.text or not answer.headers["content-type"].startswith(
            "text/html"
        )
        assert answer.headers["x-content-type-options"] == "nosniff"
