"""Heartbeats and the exit of an attempt: orders, fencing, the end of its run."""

import hashlib
import json

import pytest

from lehr.control.lifecycle import RunState
from lehr.errors import StoreUnavailable
from lehr_testing.api import (
    Worker,
    attempt_token,
    begin,
    finished,
    ingest,
    line,
    metrics,
    run_of,
    started,
)


def test_a_heartbeat_answer_contains_the_orders(api, worker):
    api_, client = api
    run = run_of(api_, worker).id
    reply = worker.heartbeat(step=5)
    assert reply["orders"] == {"desired": "run", "checkpoint_seq": 0, "reason": "", "keep": []}
    assert reply["fenced"] is False
    assert reply["interval_s"] > 0
    assert client.get(f"/api/v1/runs/{run}").json()["attempts"][0]["last_heartbeat_at"] is not None
    client.post(f"/api/v1/runs/{run}/checkpoint")
    assert worker.heartbeat()["orders"]["checkpoint_seq"] == 1
    client.post(f"/api/v1/runs/{run}/pause")
    assert worker.heartbeat()["orders"]["desired"] == "pause"
    client.post(f"/api/v1/runs/{run}/cancel")
    assert worker.heartbeat()["orders"]["desired"] == "stop"


def test_a_superseded_attempt_is_fenced_but_its_bytes_are_stored(api, worker):
    api_, client = api
    store, run = api_.store, run_of(api_, worker)
    ingest(store, worker.id, started() + metrics(1, 5))
    moved = store.transitions.apply(
        run.id,
        old=RunState.RUNNING,
        new=RunState.QUEUED,
        attempt=1,
        cause="node_lost",
        actor="dispatcher",
    )
    assert moved
    begin(store, run.id, 2)
    new = Worker(client, run.id, 2)
    ingest(store, new.id, started(2) + line("resumed", step=3, checkpoint="attempt-1/x"))
    reply = worker.heartbeat(step=6)
    assert reply["fenced"] is True
    assert reply["orders"]["desired"] == "stop"
    assert new.heartbeat()["fenced"] is False
    # Late bytes are history: stored, and of no consequence for the run.
    held = worker.offsets()["events.jsonl"]
    late = metrics(6, 8) + line(
        "checkpoint", step=8, path="attempt-1/checkpoints/step-00000008", size_bytes=1, digest="d"
    )
    assert worker.put(late, held).status_code == 200
    store.event_applier.apply(worker.id)
    ingest(store, new.id, metrics(4, 4))
    assert store.series.read(run.id, "train/loss", exact=True).step == [1, 2, 3, 4]
    assert client.get(f"/api/v1/runs/{run.id}/checkpoints").json() == []
    # Its token opens nothing of the new attempt.
    assert (
        worker.client.get(f"/api/v1/attempts/{new.id}/streams", headers=worker.headers).status_code
        == 401
    )


def test_exit_closes_the_attempt_when_all_its_bytes_arrived(api, worker):
    api_, client = api
    data = started() + metrics(1, 3) + finished(3)
    sizes = {"events.jsonl": len(data), "rank-0.log": 4}
    note = {"code": 0, "signal": None, "started_at": 1.0, "ended_at": 2.0, "reason": "exited"}
    worker.put(data[:50], 0)
    early = worker.post("exit", {"exit": note, "sizes": sizes}).json()
    assert early == {"closed": False, "offsets": {"events.jsonl": 50}}
    worker.put(data[50:], 50)
    worker.put(b"bye\n", 0, "rank-0.log")
    for _ in range(2):  # The answer may be lost: it is sent again.
        reply = worker.post("exit", {"exit": note, "sizes": sizes}).json()
        assert reply == {"closed": True, "offsets": sizes}
    view = client.get(f"/api/v1/runs/{run_of(api_, worker).id}").json()
    assert view["state"] == "completed"
    assert view["attempts"][0]["open"] is False
    assert view["attempts"][0]["outcome"] == "completed"
    assert worker.heartbeat()["fenced"] is True


@pytest.mark.parametrize(
    "body", [{}, {"exit": 5}, {"exit": {}, "sizes": {"x": -1}}, {"exit": {}, "sizes": []}, []]
)
def test_invalid_exit_is_rejected(worker, body):
    answer = worker.post("exit", body)
    assert answer.status_code == 422
    assert answer.json()["code"] == "invalid_request"


def test_token_is_compared_only_by_its_digest(api, worker):
    """A digest read from the database does not open anything."""
    api_, client = api
    stored = api_.store.attempts.get(worker.id).token_sha256
    assert (
        stored == hashlib.sha256(attempt_token(worker.id.rpartition("-")[0]).encode()).hexdigest()
    )
    headers = {"Authorization": f"Bearer {stored}", "Lehr-Protocol": "1"}
    assert client.get(f"/api/v1/attempts/{worker.id}/streams", headers=headers).status_code == 401


@pytest.mark.parametrize(
    "odd",
    [
        {"finished": {"step": "abc", "outcome": "failed"}},
        {"finished": ["completed"]},
        {"finished": {"step": 2**63, "outcome": "completed"}},
        {"code": {}, "signal": "nine", "ended_at": "now"},
        {"parts": 5, "synthetic": True, "node": [1]},
        {"log_tail": "\ud800", "reason": 7},
    ],
)
def test_odd_exit_report_closes_the_attempt_and_fails_the_run(api, worker, odd):
    api_, client = api
    worker.put(started() + metrics(1, 3), 0)
    body = {"exit": {"code": 1, "log_tail": "ValueError: no"} | odd, "sizes": {}}
    answer = client.post(
        f"/api/v1/attempts/{worker.id}/exit",
        content=json.dumps(body),
        headers={**worker.headers, "Content-Type": "application/json"},
    )
    assert answer.status_code == 200, answer.text
    assert answer.json()["closed"]
    run = run_of(api_, worker)
    assert (run.state, run.cause) == ("failed", "user_code")
    note = api_.store.attempts.get(worker.id).exit
    assert {part.partition(":")[0].partition(".")[0] for part in note.get("dropped", [])} == (
        odd.keys() & {"finished", "code", "signal", "ended_at", "log_tail", "reason"}
    )
    shown = client.get(f"/api/v1/runs/{run.id}")
    assert shown.status_code == 200, shown.text


def test_shim_repeats_its_exit_while_the_disk_is_full(api, worker, monkeypatch):
    api_, _ = api
    worker.put(started(), 0)
    with monkeypatch.context() as patch:

        def refuse(*_):
            raise StoreUnavailable("The disk is full.")

        patch.setattr("lehr.cluster.attempt_protocol.finalize", refuse)
        assert worker.post("exit", {"exit": {"code": 1}, "sizes": {}}).status_code == 503
    assert worker.post("exit", {"exit": {"code": 1}, "sizes": {}}).json()["closed"]
    assert run_of(api_, worker).state == "failed"
