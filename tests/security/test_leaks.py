"""Tokens and values of secrets: in no page, answer, log or traceback."""

from __future__ import annotations

import io
import logging
import re
import sys
from collections.abc import Iterator
from types import SimpleNamespace

import pytest

from lehr.code import archive
from lehr.code.archive import SourceFile
from lehr.store.secret_store import SecretStore
from lehr_api import auth
from lehr_api.__main__ import configure_logs
from lehr_testing import api as setup
from lehr_testing.api import RUN_SPEC, SWEEP_SPEC, TOKEN, attempt_token
from lehr_testing.asgi import Request, ask
from lehr_testing.rollouts import TRAIN
from lehr_testing.routes import walk

API = "/api/v1"
VALUE = "the-value-of-a-secret"
HOOK = "https://hooks.example.org/services/T0/B0/the-path-of-a-webhook"
QUERIES = {
    "/compare": "run={0}&run={0}",
    "/values": "run={0}&names=true",
    "/v1/series": "run={0}&name=train/loss",
    "/v1/metrics": "run={0}",
    "/series": "name=train/loss",
    "/search": "text=own",
    "/diff": "other={0}",
}
"""By the end of a path: the query that it needs."""


@pytest.fixture
def scene(tmp_path) -> Iterator[SimpleNamespace]:
    """A server with a run that has logged, a sweep and a rollout, and a researcher's token."""
    with setup.api_client(tmp_path / "home") as (api, client):

        def post(path, **body):
            answer = client.post(f"{API}/{path}", json=body)
            assert answer.status_code == 201, answer.text
            return answer.json()

        (tmp_path / "own.py").write_text("print(1)\n")
        output = io.BytesIO()
        source = SourceFile("project/own.py", str(tmp_path / "own.py"), False)
        digest, _ = archive.write([source], output)
        assert client.put(f"{API}/code/{digest}", content=output.getvalue()).status_code == 200
        run = post("runs", spec={**RUN_SPEC, "code": {"digest": digest}})["id"]
        attempt = setup.begin(api.store, run)
        setup.ingest(api.store, attempt, setup.started() + setup.metrics(1, 5))
        setup.ingest(api.store, attempt, b"own\n", name="rank-0.log")
        rollout = {"kind": "rollout", "name": "r", "run": {"train": TRAIN}}
        ids = {
            "run": run,
            "sweep": post("sweeps", spec=SWEEP_SPEC)["id"],
            "rollout": post("rollouts", spec=rollout)["id"],
            "code": digest,
        }
        token = post("tokens", name="eve", role="researcher")["token"]
        yield SimpleNamespace(api=api, client=client, token=token, ids=ids)


@pytest.fixture
def kept(scene, tmp_path) -> Iterator[SimpleNamespace]:
    """The scene with one of each secret, its log in a file, and all that nobody may read."""
    root = logging.getLogger()
    handlers, level = root.handlers[:], root.level
    log = tmp_path / "home/logs/server.log"
    configure_logs(log)
    (tmp_path / "home/token").write_text(TOKEN)
    for path, body in (("secrets/hf", {"value": VALUE}), ("secrets/team", {"value": HOOK})):
        answer = scene.client.put(f"{API}/{path}", json=body)
        assert answer.status_code == 200, answer.text
    values = {
        "the server's token": TOKEN,
        "a person's token": scene.token,
        "an attempt's token": attempt_token(scene.ids["run"]),
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
        request(scene.ids, path, token)
        for path, method in sorted(set(walk(scene.client.app.routes)))
        if method == "GET"
        and not (path.startswith("/static") or auth.is_open(path) or auth.attempt_of(path))
        and path != f"{API}/stream"
    ]
    run = scene.ids["run"]
    pages = ("/", "/runs", f"/runs/{run}", "/sweeps", "/cluster", "/login", "/metrics")
    return [*asked, *(Request("GET", page, token) for page in pages)]


def request(ids: dict[str, str], path: str, token: str) -> Request:
    """Return the request of a route, with ids and a query that it finds something with."""
    kind = path.removeprefix(API).split("/")[1].rstrip("s")
    parts = {"name": "rank-0.log", "step": "5", "node": "n1", "digest": ids["code"]}
    own = ids.get(kind, ids["run"])
    address = re.sub(r"\{(\w+)(:\w+)?\}", lambda part: parts.get(part[1], own), path)
    query = next((query for end, query in QUERIES.items() if path.endswith(end)), "")
    return Request("GET", address, token, query=query.format(ids["run"]))


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
        ("PUT", f"{API}/secrets/other", TOKEN, f'{{"value": "{VALUE}"}}'.encode()),
    ]
    for method, path, token, body in asked:
        [answer] = ask(scene.client, scene.api.app, [Request(method, path, token, [body])])
        assert answer.status == 500, (path, answer.body)
        assert not holding(answer.body, kept.values)
    cookie = {"cookie": f"lehr={TOKEN}"}
    scene.client.get("/runs", headers={"Authorization": f"Bearer wrong-{TOKEN}", **cookie})
    text = kept.log.read_bytes()
    assert text.count(b"RuntimeError: a bug of Lehr") == len(asked)
    assert not holding(text, kept.values)
