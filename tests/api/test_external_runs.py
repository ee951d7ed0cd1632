"""Runs of processes that Lehr did not start: ids, attempts, ends, and what is refused."""

from __future__ import annotations

import time
from hashlib import sha256

import pytest

from lehr.control.lifecycle import Desired, RunState, transition_for_request
from lehr.control.liveness import Liveness
from lehr.store.upkeep.integrity import check
from lehr_testing.api import RUN_SPEC, Worker, begin, finished, line, metrics, started

ARGS = {"lr": 1e-3, "seed": 1, "Any name/x": {"a": [1]}}
SPEC = {"kind": "run", "name": "mine", "project": "p", "resources": {"gpus": 0}}


def outside(client, run_id="k3f9x2ab", *, token="one", **fields):
    body = {"id": run_id, "token_sha256": sha256(token.encode()).hexdigest()}
    trainer = {"external": True, "args": ARGS, **fields.pop("trainer", {})}
    spec = {**SPEC, "trainer": trainer, **fields.pop("spec", {})}
    body |= {"started_at": time.time() - 100, "spec": spec, **fields}
    return client.post("/api/v1/runs/external", json=body)


def worker_of(client, answer, token="one"):
    worker = Worker(client, answer.json()["run_id"])
    worker.id = answer.json()["attempt_id"]
    worker.headers["Authorization"] = f"Bearer {token}"
    return worker


def ends(worker, data, **exit_report):
    worker.put(data, 0)
    report = {"exit": {"code": 0, **exit_report}, "sizes": {"events.jsonl": len(data)}}
    assert worker.post("exit", report).json()["closed"]


def view(client, run_id="k3f9x2ab"):
    return client.get(f"/api/v1/runs/{run_id}").json()


def test_it_is_recorded_once_and_an_id_in_use_becomes_another_one(api):
    _, client = api
    first = outside(client)
    assert first.status_code == 201
    assert first.json() == {"run_id": "k3f9x2ab", "attempt_id": "k3f9x2ab-1"}
    assert outside(client).json() == first.json()
    other = outside(client, token="two").json()
    assert other["run_id"] != "k3f9x2ab"
    shown = view(client)
    assert (shown["state"], shown["attempt"], shown["gpus"]) == ("external", 1, 0)
    assert shown["spec"]["trainer"]["args"] == ARGS
    assert time.time() - shown["started_at"] >= 100
    worker = worker_of(client, first)
    answer = worker.heartbeat(step=3)
    assert (answer["orders"]["desired"], answer["fenced"]) == ("run", False)


@pytest.mark.parametrize(
    ("outcome", "state"),
    [("completed", "completed"), ("failed", "failed"), ("stopped", "cancelled")],
)
def test_its_own_last_record_decides_on_its_state_and_nothing_is_retried(api, outcome, state):
    api_, client = api
    worker = worker_of(client, outside(client))
    record = finished(9, outcome, cause="program_failed", message="NCCL error: it broke")
    ends(worker, started() + metrics(1, 9) + record)
    shown = view(client)
    assert (shown["state"], shown["step"]) == (state, 9)
    assert state == "completed" or "it broke" in shown["reason"]
    assert check(api_.store.home) == []


def test_a_process_that_resumes_it_is_its_next_attempt_on_one_curve(api):
    api_, client = api
    old = worker_of(client, outside(client))
    old.put(started() + metrics(1, 9), 0)
    answer = outside(client, token="two", resume=True)
    assert answer.json() == {"run_id": "k3f9x2ab", "attempt_id": "k3f9x2ab-2"}
    assert old.heartbeat()["fenced"]
    resumed = line("resumed", step=6, checkpoint="")
    ends(worker_of(client, answer, "two"), started(2) + resumed + metrics(7, 12) + finished(12))
    again = outside(client, token="three", resume=True)
    assert again.json()["attempt_id"] == "k3f9x2ab-3"
    assert view(client)["state"] == "external"
    series = api_.store.series.read("k3f9x2ab", "train/loss", exact=True)
    assert list(series.step) == list(range(1, 13))
    assert check(api_.store.home) == []


def test_lehr_neither_starts_pauses_repeats_nor_resumes_it(api):
    _, client = api
    ours = client.post("/api/v1/runs", json={"spec": RUN_SPEC}).json()["id"]
    refused = outside(client, ours, resume=True)
    assert refused.status_code == 409
    assert "was started by Lehr" in refused.json()["detail"]
    worker = worker_of(client, outside(client))
    assert "only its own process" in client.post("/api/v1/runs/k3f9x2ab/pause").json()["detail"]
    ends(worker, started() + finished(0, "failed", message="x"))
    retried = client.post("/api/v1/runs/k3f9x2ab/retry").json()
    assert "was not started by Lehr" in retried["detail"]
    seeds = client.post("/api/v1/runs/k3f9x2ab/seeds", json={"n": 2})
    assert "Lehr cannot start it" in seeds.json()["detail"], seeds.text
    spec = {"kind": "run", "name": "x", "trainer": {"external": True}, "resources": {"gpus": 0}}
    submitted = client.post("/api/v1/runs", json={"spec": spec})
    assert "Lehr cannot start it" in submitted.json()["detail"]


def test_it_is_cancelled_at_once_and_its_process_is_told(api):
    _, client = api
    worker = worker_of(client, outside(client))
    assert client.post("/api/v1/runs/k3f9x2ab/cancel").json()["desired"] == "cancel"
    assert worker.heartbeat()["orders"]["desired"] == "stop"
    # The tick carries it out by this rule; no process has to answer for it.
    assert transition_for_request(RunState.EXTERNAL, Desired.CANCEL) is RunState.CANCELLED


def test_silence_is_shown_and_is_no_failure(api):
    api_, client = api
    outside(client)
    assert view(client)["reason"] is None
    api_.dispatcher.silent = {"k3f9x2ab": Liveness.UNREACHABLE}
    shown = view(client)
    assert (shown["state"], shown["liveness"]) == ("external", "unreachable")
    assert shown["reason"].startswith("silent: nothing has come from its process for 10 minutes")


def test_it_is_compared_reported_and_deleted_as_any_other_run(api):
    api_, client = api
    ours = client.post("/api/v1/runs", json={"spec": RUN_SPEC}).json()["id"]
    api_.store.streams.append(begin(api_.store, ours), "events.jsonl", 0, started() + metrics(1, 5))
    ends(worker_of(client, outside(client)), started() + metrics(1, 9) + finished(9))
    compared = client.get(f"/api/v1/compare?run=k3f9x2ab&run={ours}")
    assert compared.json()["runs"] == ["k3f9x2ab", ours]
    assert client.get("/api/v1/runs/k3f9x2ab/report").status_code == 200
    assert client.delete("/api/v1/runs/k3f9x2ab").json()["deleted"]


@pytest.mark.parametrize(
    ("fields", "words"),
    [
        ({"spec": {"name": "a name"}}, "name is"),
        ({"trainer": {"steps": 0}}, "trainer.steps"),
        ({"trainer": {"external": False, "script": "a.py", "args": {}}}, "trainer.external"),
        ({"run_id": "A-b"}, "id"),
    ],
)
def test_wrong_fields_are_named_and_nothing_is_recorded(api, fields, words):
    _, client = api
    answer = outside(client, **fields)
    assert answer.status_code in {400, 422}
    assert words in answer.text
    assert client.get("/api/v1/runs").json()["items"] == []
