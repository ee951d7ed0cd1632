"""Requests that are too large or too many: rejected early, with a short answer."""

from __future__ import annotations

import json
from collections.abc import Iterator

import pytest

from lehr_testing.api import RUN_SPEC, SWEEP_SPEC, TOKEN, api_client, attempt_token, begin
from lehr_testing.asgi import Answer, Request, ask
from lehr_testing.paths import ROOT

HUNDRED = 100 << 20


@pytest.fixture
def scene(tmp_path):
    with api_client(tmp_path / "home") as (api, client):
        run = client.post("/api/v1/runs", json={"spec": RUN_SPEC}).json()["id"]
        attempt = begin(api.store, run)
        yield api, client, run, attempt


def with_a_body() -> list[tuple[str, str]]:
    described = json.loads((ROOT / "docs/openapi.json").read_text())["paths"]
    return [
        (method.upper(), path)
        for path, methods in described.items()
        for method, operation in methods.items()
        if "requestBody" in operation
    ]


def endless() -> Iterator[bytes]:
    piece = b"x" * (1 << 16)
    for _ in range(HUNDRED >> 16):
        yield piece


def test_body_of_100_mb_is_rejected_before_it_is_read(scene):
    api, client, run, attempt = scene
    asked = []
    for method, path in with_a_body():
        if path.endswith(("/code/{digest}", "/bundles")):
            continue  # They may be this large, and have limits of their own.
        token = attempt_token(run) if "{attempt_id}" in path else TOKEN
        url = path.replace("{attempt_id}", attempt).replace("{name}", "events.jsonl")
        for headers in ({"content-length": str(HUNDRED)}, {"transfer-encoding": "chunked"}):
            request = Request(
                method,
                url.replace("{ref}", run),
                token,
                endless(),
                headers,
                "offset=0" if "/streams/" in url else "",
            )
            asked.append((request, "content-length" in headers))
    assert len(asked) >= 30
    answers = ask(client, api.app, [request for request, _ in asked])
    for (request, stated), answer in zip(asked, answers, strict=True):
        what = f"{request.method} {request.path}, {stated}: {answer.status}"
        assert answer.status == 413, what
        assert json.loads(answer.body)["code"] == "too_large", what
        limit = 0 if stated else (5 << 20)
        assert answer.read <= limit, what


def of_many_keys(number: int) -> dict[str, object]:
    keys = {f"key{k}": "x" for k in range(number)}
    return {
        "POST runs": {"spec": RUN_SPEC, **keys},
        "POST runs spec": {"spec": {**RUN_SPEC, **keys}},
        "POST runs train": {"spec": {**RUN_SPEC, "train": {**RUN_SPEC["train"], **keys}}},
        "POST runs env": {"spec": {**RUN_SPEC, "env": {f"bad {k}": "x" for k in range(number)}}},
        "POST runs overrides": {"spec": RUN_SPEC, "overrides": [f"{k}=1" for k in keys]},
        "POST runs mapping": {"spec": RUN_SPEC, "overrides": keys},
        "POST sweeps": {"spec": {**SWEEP_SPEC, "parameters": keys}},
        "POST attempts/ID/heartbeat": {"sizes": keys},
        "POST attempts/ID/copies": {"copies": [{}] * 10_000},
        "POST attempts/ID/exit": {"exit": {}, "sizes": keys},
    }


def send(scene, which: str, body: object) -> Answer:
    api, client, run, attempt = scene
    method, path = which.split(" ")[:2]
    token = attempt_token(run) if "ID" in path else TOKEN
    text = json.dumps(body).encode()
    pieces = [text[at : at + (1 << 16)] for at in range(0, len(text), 1 << 16)]
    url, stated = f"/api/v1/{path.replace('ID', attempt)}", {"content-length": str(len(text))}
    [answer] = ask(client, api.app, [Request(method, url, token, pieces, stated)])
    assert len(answer.body) < 100_000
    assert api.store.runs.page(archived=None).total == 1
    return answer


@pytest.mark.parametrize("which", of_many_keys(0))
def test_many_wrong_keys_get_a_short_answer(scene, which):
    answer = send(scene, which, of_many_keys(4_000)[which])
    assert answer.status == 422, answer.body[:300]
