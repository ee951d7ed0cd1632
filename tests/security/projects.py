"""A server with two projects, and a token that is limited to one of them."""

from __future__ import annotations

import io
from dataclasses import dataclass
from types import SimpleNamespace
from typing import Any

from lehr.capsules import archive
from lehr.capsules.archive import SourceFile
from lehr_testing.api import RUN_SPEC, SWEEP_SPEC, begin, evaluation, ingest, metrics
from lehr_testing.api import started as started_record
from lehr_testing.rollouts import TRAIN

SECRET = "canary"
"""In each name and text of the other project."""
API = "/api/v1"


def bearer(token: str) -> dict[str, str]:
    return {"Authorization": f"Bearer {token}"}


@dataclass
class Scene:
    api: Any
    client: Any
    token: str
    """For the project mine."""
    mine: SimpleNamespace
    theirs: SimpleNamespace

    def get(self, path: str, token: str | None = None):
        return self.client.get(f"{API}{path}", headers=bearer(token or self.token))

    def send(self, method: str, path: str, body: Any, **headers: str):
        given = {**bearer(self.token), **headers}
        return self.client.request(method, f"{API}{path}", json=body, headers=given)

    def counts(self) -> list[int]:
        store = self.api.store
        return [t.page(archived=None).total for t in (store.runs, store.sweeps, store.rollouts)]


def project(api, client, name: str, word: str, tmp_path) -> SimpleNamespace:
    """Submit a run, a sweep and a rollout as the server's owner, each text with the word."""

    def post(kind: str, spec: dict[str, Any]) -> str:
        spec = {**spec, "kind": kind, "project": name, "name": f"{word}-{kind}", "notes": word}
        answer = client.post(f"{API}/{kind}s", json={"spec": {**spec, "tags": [f"{word}-tag"]}})
        assert answer.status_code == 201, answer.text
        return answer.json()["id"]

    digest, data = capsule(tmp_path, f"print('{word}')\n", f"{word}.py")
    assert client.put(f"{API}/code/{digest}", content=data).status_code == 200
    run = post("run", {**RUN_SPEC, "code": {"digest": digest}})
    attempt = begin(api.store, run)
    body = started_record() + metrics(1, 5) + evaluation(5, 2.0)
    ingest(api.store, attempt, body)
    ingest(api.store, attempt, f"{word}\n".encode(), name="rank-0.log")
    sweep = post("sweep", SWEEP_SPEC)
    rollout = post("rollout", {"run": {"train": TRAIN}})
    return SimpleNamespace(run=run, sweep=sweep, rollout=rollout, attempt=attempt, digest=digest)


def capsule(folder, text: str, name: str = "train.py") -> tuple[str, bytes]:
    (folder / name).write_text(text)
    output = io.BytesIO()
    digest, _ = archive.write([SourceFile(f"project/{name}", str(folder / name), False)], output)
    return digest, output.getvalue()
