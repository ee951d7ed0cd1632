"""Submissions over HTTP: recorded once, completely or not at all."""

import threading

import pytest

from lehr.services import checks
from lehr_testing.api import (
    RUN_SPEC,
    SWEEP_SPEC,
    api_client,
    changed,
    counts,
    submit,
)
from lehr_trainer.data.first_file import Looks

# ------------------------------------------------------------------------------------ submitting


def test_a_submitted_run_is_queued_resolved_and_found_by_id_and_name(api):
    api_, client = api
    run = submit(client)
    assert run["state"] == "queued"
    assert run["spec"]["train"]["model"]["hidden_size"] == 128
    assert run["tokens_per_step"] == 256
    assert run["latest"] == {}
    assert run["step"] is None
    assert api_.dispatcher.woken == 1
    for ref in (run["id"], "one", run["id"][:6]):
        assert client.get(f"/api/v1/runs/{ref}").json()["id"] == run["id"]


def test_overrides_change_the_submitted_spec(api):
    _, client = api
    for overrides in ({"train.steps": 7}, ["train.steps=7"]):
        answer = client.post("/api/v1/runs", json={"spec": RUN_SPEC, "overrides": overrides})
        assert answer.json()["total_steps"] == 7


def test_provenance_is_stored_unchanged(api):
    _, client = api
    body = {"spec": RUN_SPEC, "provenance": {"git": {"commit": "abc"}, "n": [1, None]}}
    run = client.post("/api/v1/runs", json=body).json()
    assert client.get(f"/api/v1/runs/{run['id']}").json()["provenance"] == body["provenance"]


def test_a_bad_spec_names_every_problem_and_records_nothing(api):
    api_, client = api
    spec = changed(RUN_SPEC, "train.optimizer.learning_rate", 1e-3)
    spec = changed(spec, "train.steps", -5)
    answer = client.post("/api/v1/runs", json={"spec": spec})
    assert answer.status_code == 422
    assert answer.headers["content-type"] == "application/problem+json"
    problem = answer.json()
    assert problem["code"] == "invalid_spec"
    assert problem["status"] == 422
    found = {one["path"]: one for one in problem["problems"]}
    assert "train.optimizer.lr" in found["train.optimizer.learning_rate"]["hint"]
    assert "-5" in found["train.steps"]["message"]
    assert counts(api_) == (0, 0)
    assert api_.dispatcher.woken == 0


def test_more_gpus_than_the_cluster_has_are_rejected_at_submission(api):
    api_, client = api
    spec = changed(RUN_SPEC, "resources.gpus", 16)
    spec = changed(spec, "train.batch.sequences", 16)
    answer = client.post("/api/v1/runs", json={"spec": spec})
    assert answer.status_code == 422
    [problem] = answer.json()["problems"]
    assert problem["path"] == "resources.gpus"
    assert "needs 16 GPUs" in problem["message"]
    assert "8 x logical GPU" in problem["message"]
    sweep = changed(SWEEP_SPEC, "run.resources.gpus", 16)
    sweep = changed(sweep, "run.train.batch.sequences", 16)
    answer = client.post("/api/v1/sweeps", json={"spec": sweep})
    [problem] = answer.json()["problems"]
    assert problem["path"] == "run.resources.gpus"
    assert counts(api_) == (0, 0)


def with_corpus(paths):
    corpus = {"kind": "text", "paths": paths, "document": "line"}
    return changed(RUN_SPEC, "train.data.corpus", corpus)


def test_missing_corpus_is_rejected_at_submission(api, tmp_path):
    api_, client = api
    (tmp_path / "there.txt").write_text("".join(f"line {n} of a text\n" for n in range(2000)))
    good, bad = str(tmp_path / "there.txt"), str(tmp_path / "nowhere")
    answer = client.post("/api/v1/runs", json={"spec": with_corpus([good, bad])})
    assert answer.status_code == 422
    [problem] = answer.json()["problems"]
    assert problem["path"] == "train.data.corpus.paths"
    assert bad in problem["message"]
    assert counts(api_) == (0, 0)
    for paths in ([good], [str(tmp_path)], [f"{tmp_path}/*.txt"]):
        answer = client.post("/api/v1/runs", json={"spec": with_corpus(paths)})
        assert answer.status_code == 201, answer.text
    answer = client.post("/api/v1/runs", json={"spec": with_corpus([f"{tmp_path}/*.jsonl"])})
    assert "no file matches" in answer.json()["detail"]


def test_looks_for_a_corpus_are_limited_over_a_whole_submission(api, tmp_path, monkeypatch):
    """A glob below / would keep a thread of the server for minutes, each time."""
    _, client = api
    kept = []

    def counted() -> Looks:
        kept.append(Looks(left=25))
        return kept[-1]

    monkeypatch.setattr(checks, "Looks", counted)
    folder = tmp_path / "text"
    folder.mkdir()
    for number in range(10):
        (folder / f"{number}.bin").touch()
    nothing = [f"{folder}/**/{name}.txt" for name in "abcdefgh"]
    sweep = changed(SWEEP_SPEC, "run.train.data.corpus", {"kind": "text", "paths": nothing})
    answer = client.post("/api/v1/sweeps", json={"spec": sweep})
    # Two are known to be missing; then nothing more is looked at.
    assert [one["message"].count("no file matches") for one in answer.json()["problems"]] == [1, 1]
    assert [looks.left for looks in kept] == [0]
    answer = client.post("/api/v1/runs", json={"spec": with_corpus([f"{folder}/**/*.bin"])})
    assert answer.status_code == 201


def test_equal_data_of_the_trials_of_a_sweep_is_checked_once(api, monkeypatch):
    _, client = api
    seen = []
    monkeypatch.setattr(checks, "check_data", lambda data, *_: seen.append(data))
    assert client.post("/api/v1/sweeps", json={"spec": SWEEP_SPEC}).status_code == 201
    assert len(seen) == 1
    two = {"train.data.tokenizer": {"values": ["byte", "tekken"]}}
    spec = {**SWEEP_SPEC, "parameters": {**SWEEP_SPEC["parameters"], **two}}
    client.post("/api/v1/sweeps", json={"spec": spec})
    assert [data.tokenizer for data in seen[1:]] == ["byte", "tekken"]


def with_mix(web, tmp_path):
    parts = {
        "web": {"weight": 3, "corpus": {"kind": "text", "paths": [web]}},
        "code": {"weight": 1, "corpus": {"kind": "text", "paths": [str(tmp_path)]}},
    }
    return changed(RUN_SPEC, "train.data.corpus", {"kind": "mix", "parts": parts})


def test_corpora_of_a_mix_are_checked_at_submission(api, tmp_path):
    api_, client = api
    (tmp_path / "there.txt").write_text("text")
    field = "train.data.corpus.parts.web.corpus.paths"
    for path, says in ((str(tmp_path / "nowhere"), "there is no"), ("here", "relative path")):
        answer = client.post("/api/v1/runs", json={"spec": with_mix(path, tmp_path)})
        assert answer.status_code == 422
        [problem] = answer.json()["problems"]
        assert problem["path"] == field
        assert says in problem["message"]
    spec = with_mix(str(tmp_path / "there.txt"), tmp_path)
    body = {"spec": spec, "overrides": {field: ["here"]}}
    assert "relative" in client.post("/api/v1/runs", json=body).json()["detail"]
    (tmp_path / "empty").mkdir()
    answer = client.post("/api/v1/runs", json={"spec": with_mix(f"{tmp_path}/empty", tmp_path)})
    assert f"{field}: the folder {tmp_path}/empty holds no text file" in answer.json()["detail"]
    assert counts(api_) == (0, 0)
    assert client.post("/api/v1/runs", json={"spec": spec}).status_code == 201


def test_corpus_too_small_is_refused_with_all_that_is_missing(api, tmp_path):
    api_, client = api
    (tmp_path / "one.txt").write_text("a short text\n" * 3)
    answer = client.post("/api/v1/runs", json={"spec": with_corpus([str(tmp_path)])})
    assert answer.status_code == 422
    [problem] = answer.json()["problems"]
    assert "1 different document (each a line) in 1 file." in problem["message"]
    assert problem["message"].endswith("Change validation.share, or take a larger corpus.")
    assert counts(api_) == (0, 0)


@pytest.mark.parametrize(
    ("tokenizer", "wording"),
    [("tekken", "131,072 tokens"), ("tekkn", "did you mean tekken?")],
)
def test_tokenizer_that_does_not_fit_the_model_is_rejected_at_submission(api, tokenizer, wording):
    api_, client = api
    spec = changed(RUN_SPEC, "train.data.tokenizer", tokenizer)
    answer = client.post("/api/v1/runs", json={"spec": spec})
    assert answer.status_code == 422
    [problem] = answer.json()["problems"]
    assert problem["path"] == "train.data"
    assert wording in problem["message"]
    assert counts(api_) == (0, 0)


def test_a_relative_corpus_path_is_rejected(api):
    _, client = api
    answer = client.post("/api/v1/runs", json={"spec": with_corpus(["here/text"])})
    assert answer.status_code == 422
    assert "relative" in answer.json()["detail"]
    for overrides in (
        {"train.data.corpus.paths": ["here"]},
        ["train.data.corpus.paths=[here]"],
    ):
        body = {"spec": with_corpus(["/"]), "overrides": overrides}
        answer = client.post("/api/v1/runs", json=body)
        assert answer.status_code == 422
        assert "relative" in answer.json()["detail"]


def test_corpus_is_not_checked_locally_for_a_remote_cluster(tmp_path):
    with api_client(tmp_path, ray_address="10.0.0.1:6379") as (_, client):
        answer = client.post("/api/v1/runs", json={"spec": with_corpus(["/data/on/the/nodes"])})
        assert answer.status_code == 201


def test_a_sweep_is_recorded_with_all_its_runs_in_order(api):
    _, client = api
    sweep = client.post("/api/v1/sweeps", json={"spec": SWEEP_SPEC}).json()
    assert [trial["parameters"]["train.optimizer.lr"] for trial in sweep["trials"]] == [
        1e-4,
        1e-3,
        1e-2,
    ]
    assert [trial["run"]["name"] for trial in sweep["trials"]] == ["grid-1", "grid-2", "grid-3"]
    assert sweep["counts"] == {"queued": 3}
    assert sweep["state"] == "waiting"
    assert sweep["best_run_id"] is None


def test_one_bad_trial_records_nothing_of_the_sweep(api):
    api_, client = api
    spec = changed(SWEEP_SPEC, "parameters", {"train.optimizer.lr": {"values": [1e-3, -1]}})
    answer = client.post("/api/v1/sweeps", json={"spec": spec})
    assert answer.status_code == 422
    assert counts(api_) == (0, 0)


def test_spec_sent_to_the_wrong_route_is_rejected_with_the_right_one(api):
    _, client = api
    answer = client.post("/api/v1/runs", json={"spec": SWEEP_SPEC})
    assert answer.status_code == 422
    assert "/api/v1/sweeps" in answer.json()["hint"]
    answer = client.post("/api/v1/sweeps", json={"spec": RUN_SPEC})
    assert "/api/v1/runs" in answer.json()["hint"]


# ----------------------------------------------------------------------------------- idempotency


@pytest.mark.parametrize(("path", "spec"), [("runs", RUN_SPEC), ("sweeps", SWEEP_SPEC)])
def test_the_same_key_and_body_get_the_same_answer_and_record_once(api, path, spec):
    api_, client = api
    key = {"Idempotency-Key": "k1"}
    first = client.post(f"/api/v1/{path}", json={"spec": spec}, headers=key)
    before = counts(api_)
    again = client.post(f"/api/v1/{path}", json={"spec": spec}, headers=key)
    assert (first.status_code, again.status_code) == (201, 201)
    assert first.json() == again.json()
    assert "idempotency-replayed" not in first.headers
    assert again.headers["idempotency-replayed"] == "true"
    assert counts(api_) == before


def test_the_same_key_with_another_body_is_refused(api):
    api_, client = api
    key = {"Idempotency-Key": "k1"}
    client.post("/api/v1/runs", json={"spec": RUN_SPEC}, headers=key)
    other = client.post("/api/v1/runs", json={"spec": {**RUN_SPEC, "name": "two"}}, headers=key)
    assert other.status_code == 409
    assert "key" in other.json()["detail"]
    elsewhere = client.post("/api/v1/sweeps", json={"spec": SWEEP_SPEC}, headers=key)
    assert elsewhere.status_code == 409
    assert counts(api_) == (1, 0)


def test_a_repeated_request_is_not_checked_again_although_the_nodes_have_changed(api):
    api_, client = api
    key = {"Idempotency-Key": "k1"}
    first = client.post("/api/v1/runs", json={"spec": RUN_SPEC}, headers=key)
    api_.dispatcher.largest = 0
    again = client.post("/api/v1/runs", json={"spec": RUN_SPEC}, headers=key)
    assert (again.status_code, again.json()["id"]) == (201, first.json()["id"])


def test_a_refused_request_may_be_tried_again_with_its_key(api):
    api_, client = api
    key = {"Idempotency-Key": "k1"}
    api_.dispatcher.largest = 0
    assert client.post("/api/v1/runs", json={"spec": RUN_SPEC}, headers=key).status_code == 422
    api_.dispatcher.largest = 8
    assert client.post("/api/v1/runs", json={"spec": RUN_SPEC}, headers=key).status_code == 201


def test_ten_clients_with_one_key_record_one_run(api):
    api_, client = api
    ids, gate = [], threading.Barrier(10)

    def send():
        gate.wait(timeout=20)
        answer = client.post(
            "/api/v1/runs", json={"spec": RUN_SPEC}, headers={"Idempotency-Key": "k1"}
        )
        ids.append((answer.status_code, answer.json()["id"]))

    threads = [threading.Thread(target=send) for _ in range(10)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(timeout=30)
    assert len(ids) == 10
    assert len(set(ids)) == 1
    assert counts(api_) == (1, 0)
