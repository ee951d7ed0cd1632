"""Tokens and values of secrets: in no page, answer, log or traceback."""

from __future__ import annotations

import logging
import sys
from collections.abc import Iterator
from types import SimpleNamespace

import pytest

from lehr.secret_store import SecretStore
from lehr_api import logs
from lehr_testing.api import TOKEN, attempt_token
from lehr_testing.asgi import Request, ask

from .projects import API, bearer
from .test_projects import people_routes, request

VALUE = "the-value-of-a-secret"
HOOK = "https://hooks.example.org/services/T0/B0/the-path-of-a-webhook"


@pytest.fixture
def kept(scene, tmp_path) -> Iterator[SimpleNamespace]:
    """The scene with one of each secret, its log in a file, and all that nobody may read."""
    root = logging.getLogger()
    handlers, level = root.handlers[:], root.level
    log = tmp_path / "home/logs/server.log"
    logs.configure(log)
    (tmp_path / "home/token").write_text(TOKEN)
    for path, body in (("secrets/mine.hf", {"value": VALUE}), ("webhooks/team", {"url": HOOK})):
        answer = scene.client.put(f"{API}/{path}", json=body)
        assert answer.status_code == 200, answer.text
    values = {
        "the server's token": TOKEN,
        "a person's token": scene.token,
        "an attempt's token": attempt_token(scene.mine.run),
        "a secret": VALUE,
        "a webhook": HOOK,
    }
    try:
        yield SimpleNamespace(scene=scene, home=tmp_path / "home", log=log, values=values)
    finally:
        for handler in root.handlers:
            if handler not in handlers and handler.stream is not sys.stderr:
                handler.close()
        root.handlers[:], _ = handlers, root.setLevel(level)


def readable(scene, token: str) -> list[Request]:
    """Every route that a person reads, and the pages, of the run that has logged."""
    asked = [
        request(scene, method, path, scene.mine)
        for method, path in people_routes(scene.client.app)
        if method == "GET" and path != f"{API}/stream"
    ]
    pages = ("/", "/runs", f"/runs/{scene.mine.run}", "/sweeps", "/cluster", "/login", "/metrics")
    asked += [Request("GET", page) for page in pages]
    for one in asked:
        one.token = token
    return asked


def holding(text: bytes, values: dict[str, str]) -> list[str]:
    return [what for what, value in values.items() if value.encode() in text]


def test_no_answer_or_page_has_a_token_or_a_secret(kept):
    scene = kept.scene
    for token in (TOKEN, scene.token):
        asked = readable(scene, token)
        answers = ask(scene.client, scene.api.app, asked)
        assert sum(answer.status == 200 for answer in answers) > 40
        for one, answer in zip(asked, answers, strict=True):
            assert not holding(answer.body, kept.values), f"{one.path}: {answer.status}"
            assert not holding(str(answer.headers).encode(), kept.values), one.path


def test_traceback_of_a_failing_request_has_no_token_and_no_body(kept, monkeypatch):
    scene = kept.scene

    def fails(*_, **__):
        raise RuntimeError("a bug of Lehr")

    monkeypatch.setattr(scene.api.store.runs, "page", fails)
    monkeypatch.setattr(SecretStore, "set", fails)
    asked = [
        ("GET", f"{API}/runs", TOKEN, b""),
        ("GET", f"{API}/runs", scene.token, b""),
        ("PUT", f"{API}/secrets/mine.other", TOKEN, f'{{"value": "{VALUE}"}}'.encode()),
    ]
    for method, path, token, body in asked:
        [answer] = ask(scene.client, scene.api.app, [Request(method, path, token, [body])])
        assert answer.status == 500, (path, answer.body)
        assert not holding(answer.body, kept.values)
    cookie = {"cookie": f"lehr={TOKEN}"}
    scene.client.get("/runs", headers={**bearer("wrong-" + TOKEN), **cookie})
    text = kept.log.read_bytes()
    assert text.count(b"RuntimeError: a bug of Lehr") == len(asked)
    assert not holding(text, kept.values)
