"""Submissions over HTTP: recorded once, completely or not at all."""

import threading

import pytest

from lehr_testing.api import RUN_SPEC, SWEEP_SPEC, api_client, changed, counts, submit

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
    evaluation = {"name": "a", "command": ["python", "eval.py", "{checkpoint}"], "gpus": 16}
    answer = client.post("/api/v1/runs", json={"spec": {**RUN_SPEC, "evaluations": [evaluation]}})
    [problem] = answer.json()["problems"]
    assert problem["message"].startswith("evaluations.0.gpus: needs 16 GPUs")
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
    ("tokenizer", "wording"), [("tekken", "131,072 tokens"), ("tekkn", "did you mean tekken?")]
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


def test_corpus_is_not_checked_locally_for_a_remote_cluster(tmp_path):
    with api_client(tmp_path, ray_address="10.0.0.1:6379") as (_, client):
        answer = client.post("/api/v1/runs", json={"spec": with_corpus(["/data/on/the/nodes"])})
        assert answer.status_code == 201


def test_one_bad_trial_records_nothing_of_the_sweep(api):
    api_, client = api
    spec = changed(SWEEP_SPEC, "parameters", {"train.optimizer.lr": {"values": [1e-3, -1]}})
    answer = client.post("/api/v1/sweeps", json={"spec": spec})
    assert answer.status_code == 422
    assert counts(api_) == (0, 0)


# ----------------------------------------------------------------------------------- idempotency


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
