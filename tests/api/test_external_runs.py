"""Runs of processes that Lehr did not start: ids, attempts, ends, and what is refused."""

from __future__ import annotations

import itertools
import json
import re
import time
from hashlib import sha256

import pytest

from lehr.control.lifecycle import Desired, RunState, transition_for_request
from lehr.control.liveness import Liveness
from lehr.specs import load_spec
from lehr.store.upkeep.backup import rebuild
from lehr.store.upkeep.integrity import check
from lehr_testing.api import (
    RUN_SPEC,
    Worker,
    api_client,
    begin,
    end,
    evaluation,
    finished,
    ingest,
    line,
    metrics,
    started,
)

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


LOSSES = {1e-4: 3.0, 1e-3: 2.0, 1e-2: 1.8, 1e-1: 2.6}


def judged(api, made) -> tuple[dict, list[set]]:
    """Eight runs, two seeds of each rate, made by a function: what is said of them, and what their
    reports show."""
    _, client = api
    ids = []
    for number, (lr, seed) in enumerate(itertools.product(LOSSES, (0, 1))):
        loss = LOSSES[lr] + 0.02 * seed
        data = started() + metrics(1, 40, **{"train/loss": loss + 0.1}) + evaluation(40, loss, None)
        data += metrics(41, 41, **{"train/loss": "NaN"}) * (lr == 1e-1) + finished(41)
        args = {"args": {"lr": lr, "seed": seed}, "steps": 41}
        ids.append(made(f"run-{number}", args, data))
    said = {}
    for by in ("", "trainer.args.lr"):
        answer = client.get("/api/v1/compare", params={"run": ids, "by": by})
        said[by] = answer.json()
    said["alerts"] = [client.get(f"/api/v1/runs/{id_}/alerts").json() for id_ in ids]
    assert [len(alerts) > 0 for alerts in said["alerts"]] == [False] * 6 + [True] * 2
    assert "is better than run-0 by 1.200 ± 0.039" in str(said[""]["gaps"])
    said["reports"] = [client.get(f"/api/v1/reports/{id_}").text for id_ in ids]
    named = json.dumps(said)
    for number, id_ in enumerate(ids):
        named = named.replace(id_, f"run {number}")
    said = json.loads(named)
    texts = re.compile(r">([^<]*\w[^<]*)<| d=\"([^\"]+)")
    return said, [set(texts.findall(report)) for report in said.pop("reports")]


def test_verdicts_groups_diagnosis_and_report_are_those_of_any_other_run(api):
    api_, client = api

    def external(name, args, data):
        answer = outside(client, f"ext{name[4:]}", token=name, spec={"name": name}, trainer=args)
        ends(worker_of(client, answer, name), data)
        return answer.json()["run_id"]

    def ordinary(name, args, data):
        run = api_.store.runs.create(
            load_spec({**SPEC, "name": name, "trainer": {"script": "train.py", **args}})
        )
        ingest(api_.store, begin(api_.store, run.id), data)
        end(api_.store, run.id)
        return run.id

    (said, shown), (said_of_ours, shown_of_ours) = judged(api, external), judged(api, ordinary)
    assert said == said_of_ours
    for theirs, ours in zip(shown, shown_of_ours, strict=True):
        other = {text for text, _ in theirs ^ ours}
        facts = {"trainer.external", "true", "trainer.script", "null", "train.py", "n1:0"}
        assert {text for text in other - facts if "UTC" not in text} == set()
    assert client.delete("/api/v1/runs/ext0").json()["deleted"]
    assert not (api_.store.home / "runs/ext0").exists()


def test_lost_record_is_made_again_and_a_living_process_goes_on(tmp_path):
    names = ("completed", "stopped", "resumed")
    with api_client(tmp_path) as (api_, client):
        for name in names:
            answer = outside(client, name, token=name, spec={"name": name, "notes": "why"})
            last = finished(9, "stopped" if name == "stopped" else "completed")
            ends(worker_of(client, answer, name), started() + metrics(1, 9) + last)
        living = worker_of(client, outside(client, "resumed", token="two", resume=True), "two")
        living.put(data := started(2) + line("resumed", step=6, checkpoint=""), 0)
        before = [view(client, name) for name in names]
    (tmp_path / "lehr.db").unlink()
    assert sorted(rebuild(tmp_path).record.living) == ["resumed"]
    with api_client(tmp_path) as (api_, client):
        again = worker_of(client, outside(client, "resumed", token="two", resume=True), "two")
        assert (again.id, again.heartbeat()["fenced"]) == (living.id, False)
        assert again.put(metrics(7, 12), len(data)).status_code == 200
        series = api_.store.series.read("resumed", "train/loss", exact=True)
        assert list(series.step) == list(range(1, 13))
        for old in before:
            new = view(client, old["id"])
            fields = ("state", "attempt", "spec", "submitted_by", "note")
            assert {name: new[name] for name in fields} == {name: old[name] for name in fields}
        assert check(tmp_path) == []


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
