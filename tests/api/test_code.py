"""The routes of capsules, and what a submission does with them."""

from __future__ import annotations

import hashlib
import io
import os
from pathlib import Path

import pytest

from lehr.code import archive
from lehr.code.archive import SourceFile
from lehr.control.lifecycle import RunState
from lehr_testing import specs
from lehr_testing.api import api_client, attempt_token, begin, end

PATH = "/api/v1/code"


@pytest.fixture
def opened(tmp_path: Path):
    with api_client(tmp_path / "home") as found:
        yield found


@pytest.fixture
def client(opened):
    return opened[1]


def capsule(folder: Path, text: str = "print(1)\n") -> tuple[str, bytes]:
    (folder / "train.py").write_text(text)
    output = io.BytesIO()
    digest, _ = archive.write(
        [SourceFile("project/train.py", str(folder / "train.py"), False)], output
    )
    return digest, output.getvalue()


def submit(client, corpus: Path, **code) -> dict:
    body = {"spec": {**specs.run(corpus, "a"), "code": code}}
    return client.post("/api/v1/runs", json=body)


@pytest.fixture
def corpus(tmp_path: Path) -> Path:
    return specs.text_corpus(tmp_path / "corpus")


def test_capsule_is_sent_shown_and_downloaded_by_its_digest(client, tmp_path):
    digest, data = capsule(tmp_path)
    assert client.get(f"{PATH}/{digest}").status_code == 404
    for _ in range(2):
        sent = client.put(f"{PATH}/{digest}", content=data)
        assert sent.status_code == 200, sent.text
    assert sent.json()["files"] == [{"name": "project/train.py", "bytes": 9}]
    assert client.get(f"{PATH}/{digest[:8]}").json() == sent.json()
    got = client.get(f"{PATH}/{digest}/archive").content
    assert hashlib.sha256(got).hexdigest() == digest


def test_submission_with_an_unknown_capsule_is_refused(client, corpus):
    answer = submit(client, corpus, digest="0" * 64)
    assert answer.status_code == 422
    [problem] = answer.json()["problems"]
    assert problem["path"] == "code.digest"
    assert "no capsule 000000000000" in problem["message"]
    assert client.get("/api/v1/runs").json()["items"] == []


def test_diff_names_the_files_that_differ_and_how(client, tmp_path):
    one, data = capsule(tmp_path)
    client.put(f"{PATH}/{one}", content=data)
    two, data = capsule(tmp_path, "print(2)\n")
    client.put(f"{PATH}/{two}", content=data)
    [change] = client.get(f"{PATH}/{one}/diff", params={"other": two}).json()["changes"]
    assert (change["name"], change["change"]) == ("project/train.py", "changed")
    assert "-print(1)\n+print(2)\n" in change["patch"]
    assert client.get(f"{PATH}/{one}/diff", params={"other": one}).json()["changes"] == []
    missing = client.get(f"{PATH}/{one}/diff", params={"other": "nothing"})
    assert missing.status_code == 404
    assert "neither a run nor a capsule" in missing.json()["detail"]


def test_attempt_fetches_its_own_capsule_and_no_other(opened, corpus):
    api, client = opened
    run = submit(client, corpus).json()
    attempt = begin(api.store, run["id"])
    headers = {"Authorization": f"Bearer {attempt_token(run['id'])}", "Lehr-Protocol": "1"}
    got = client.get(f"/api/v1/attempts/{attempt}/code", headers=headers)
    assert hashlib.sha256(got.content).hexdigest() == run["spec"]["code"]["digest"]
    digest = run["spec"]["code"]["digest"]
    refused = client.get(f"{PATH}/{digest}", headers=headers)
    assert refused.status_code == 401


def test_server_that_is_closed_to_code_trains_with_its_own_alone(tmp_path, corpus):
    with api_client(tmp_path / "home", code="installed") as (_, client):
        digest, data = capsule(tmp_path)
        answer = client.put(f"{PATH}/{digest}", content=data)
        assert answer.status_code == 422
        assert "accepts no code" in answer.json()["detail"]
        (tmp_path / f"home/capsules/{digest}.tar").parent.mkdir(exist_ok=True)
        (tmp_path / f"home/capsules/{digest}.tar").write_bytes(data)
        assert "installed trainer only" in submit(client, corpus, digest=digest).text
        assert submit(client, corpus).status_code == 201
        spec = {**specs.run(corpus, "b"), "env": {"LD_PRELOAD": "/shared/mine.so", "HF_HOME": "/x"}}
        [problem] = client.post("/api/v1/runs", json={"spec": spec}).json()["problems"]
        assert problem["path"] == "env.LD_PRELOAD"
        assert "accepts no code" in problem["message"]
    with api_client(tmp_path / "open") as (_, client):
        assert client.post("/api/v1/runs", json={"spec": spec}).status_code == 201


def test_capsule_goes_with_the_last_run_that_needs_it(opened, tmp_path, corpus):
    api, client = opened
    digest, data = capsule(tmp_path)
    client.put(f"{PATH}/{digest}", content=data)
    ids = [submit(client, corpus, digest=digest).json()["id"] for _ in range(2)]
    file = tmp_path / f"home/capsules/{digest}.tar"
    for run_id in ids:
        begin(api.store, run_id)
        end(api.store, run_id, RunState.FAILED)
    for run_id, left in zip(ids, (True, False), strict=True):
        os.utime(file, (0, 0))
        done = client.delete(f"/api/v1/runs/{run_id}")
        assert done.status_code == 200, done.text
        assert file.exists() is left


def test_closed_server_runs_only_the_modules_that_are_named(tmp_path):
    program = {"module": "mine.train", "steps": 5}
    spec = {"kind": "run", "name": "a", "trainer": program, "resources": {"gpus": 1}}
    with api_client(tmp_path / "home", code="installed") as (_, client):
        answer = client.post("/api/v1/runs", json={"spec": spec})
        assert answer.status_code == 422
        assert answer.json()["problems"][0]["path"] == "trainer"
    with api_client(tmp_path / "2", code="installed", trainers=("mine.train",)) as (_, client):
        answer = client.post("/api/v1/runs", json={"spec": spec})
        assert answer.status_code == 201, answer.text
        assert answer.json()["total_steps"] == 5


def test_script_that_the_code_lacks_is_refused_with_the_nearest(client, tmp_path):
    digest, data = capsule(tmp_path)
    client.put(f"{PATH}/{digest}", content=data)
    trainer = {"script": "trian.py", "steps": 5}
    spec = {"kind": "run", "name": "a", "trainer": trainer, "code": {"digest": digest}}
    [problem] = client.post("/api/v1/runs", json={"spec": spec}).json()["problems"]
    assert problem["message"] == "trainer.script: the code has no file trian.py."
    assert problem["hint"] == "Did you mean train.py?"


def test_project_files_that_were_not_sent_are_refused(client, corpus):
    answer = submit(client, corpus, include=["*.py"])
    assert answer.status_code == 422
    assert answer.json()["problems"][0]["path"] == "code.include"
    alone = {"name": "p", "trainer": {"script": "train.py"}}
    answer = client.post("/api/v1/runs", json={"spec": alone})
    assert answer.status_code == 422
    assert answer.json()["problems"][0]["path"] == "trainer.script"
    alone["trainer"]["data"] = ["books"]
    answer = client.post("/api/v1/runs", json={"spec": alone})
    assert "trainer.data" in [one["path"] for one in answer.json()["problems"]]
    assert client.get("/api/v1/runs").json()["items"] == []
