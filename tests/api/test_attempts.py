"""The attempt protocol: bytes by offset, stored exactly once; heartbeats; the exit."""

import hashlib
import json
import random
import threading

import pytest

from lehr.control.lifecycle import RunState
from lehr.errors import StoreUnavailable
from lehr_testing.api import (
    RUN_SPEC,
    api_client,
    attempt_token,
    begin,
    end,
    finished,
    ingest,
    line,
    metrics,
    started,
)
from lehr_testing.waiting import until


class Worker:
    """What a shipper would send, with its attempt's token."""

    def __init__(self, client, run_id, number=1):
        self.client = client
        self.id = f"{run_id}-{number}"
        self.headers = {
            "Authorization": f"Bearer {attempt_token(run_id, number)}",
            "Lehr-Protocol": "1",
        }

    def put(self, data, offset, name="events.jsonl", **headers):
        return self.client.put(
            f"/api/v1/attempts/{self.id}/streams/{name}",
            params={"offset": offset},
            content=data,
            headers={**self.headers, "Content-Type": "application/octet-stream", **headers},
        )

    def offsets(self):
        answer = self.client.get(f"/api/v1/attempts/{self.id}/streams", headers=self.headers)
        assert answer.status_code == 200, answer.text
        return answer.json()["offsets"]

    def post(self, what, body):
        return self.client.post(
            f"/api/v1/attempts/{self.id}/{what}", json=body, headers=self.headers
        )

    def heartbeat(self, **body):
        answer = self.post("heartbeat", {"boot_id": "b", "pid": 1, "sizes": {}, **body})
        assert answer.status_code == 200, answer.text
        return answer.json()


@pytest.fixture
def api(tmp_path):
    with api_client(tmp_path) as pair:
        yield pair


@pytest.fixture
def worker(api):
    api_, client = api
    run = client.post("/api/v1/runs", json={"spec": RUN_SPEC}).json()["id"]
    begin(api_.store, run)
    return Worker(client, run)


def run_of(api_, worker):
    return api_.store.runs.get(worker.id.rpartition("-")[0])


def test_bytes_are_appended_by_offset(worker):
    assert worker.offsets() == {}
    answer = worker.put(started(), 0)
    assert answer.status_code == 200
    assert answer.headers["lehr-protocol"] == "1"
    end_ = answer.json()["offset"]
    assert end_ == len(answer.request.content)
    more = metrics(1, 3)
    assert worker.put(more, end_).json() == {"offset": end_ + len(more)}
    assert worker.put(b"hello\n", 0, "rank-0.log").json() == {"offset": 6}
    assert worker.offsets() == {"events.jsonl": end_ + len(more), "rank-0.log": 6}


def test_a_wrong_offset_is_answered_409_with_the_right_one(worker):
    first = metrics(1, 2)
    worker.put(first, 0)
    for wrong in (1, len(first) + 5):
        answer = worker.put(b"x\n", wrong)
        assert answer.status_code == 409
        assert answer.headers["content-type"] == "application/problem+json"
        assert answer.json()["code"] == "offset_mismatch"
        assert answer.json()["offset"] == len(first)
    assert worker.offsets() == {"events.jsonl": len(first)}


def test_repeated_append_is_stored_once(api, worker):
    api_, client = api
    piece = started() + metrics(1, 3)
    assert worker.put(piece, 0).status_code == 200
    again = worker.put(piece, 0)
    assert again.status_code in {200, 409}
    assert again.json()["offset"] == len(piece)
    [series] = client.get(
        f"/api/v1/runs/{run_of(api_, worker).id}/series",
        params={"name": "train/loss", "exact": True},
    ).json()
    assert series["step"] == [1, 2, 3]


@pytest.mark.parametrize("seed", range(4))
def test_streams_arrive_exactly_once_despite_loss_and_repetition(api, worker, seed):
    """Two concurrent shippers that lose answers and start over from any offset."""
    api_, _ = api
    data = started() + metrics(1, 60) + finished(60)
    failed = []

    def ship(dice):
        offset = 0
        for _ in range(400):
            if offset >= len(data):
                return
            piece = data[offset : offset + dice.randint(1, 700)]
            answer = worker.put(piece, offset)
            if answer.status_code not in {200, 409}:
                failed.append(answer.text)
                return
            right = answer.json()["offset"]
            offset = right if dice.random() < 0.8 else dice.randint(0, right)
        failed.append("did not finish")

    threads = [
        threading.Thread(target=ship, args=(random.Random(f"{seed}-{n}"),)) for n in range(2)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(timeout=60)
    assert failed == []
    assert api_.store.streams.read(worker.id, "events.jsonl", 0, 1 << 20) == data
    series = api_.store.series.read(run_of(api_, worker).id, "train/loss", exact=True)
    assert series.step == list(range(1, 61))


def test_malformed_line_is_stored_skipped_and_shown(api, worker):
    api_, client = api
    data = started() + b"\xff{not json\n" + metrics(1, 2)
    assert worker.put(data, 0).json() == {"offset": len(data)}
    assert api_.store.streams.read(worker.id, "events.jsonl", 0, 1 << 20) == data
    assert api_.store.series.read(run_of(api_, worker).id, "train/loss", exact=True).step == [1, 2]
    [warning] = client.get(f"/api/v1/runs/{run_of(api_, worker).id}").json()["warnings"]
    assert warning == "Attempt 1: 1 line of events.jsonl could not be read: skipped."


def test_lost_bytes_of_a_file_that_became_shorter_are_shown_for_ever(api, worker):
    """A full disk or a person has cut it: what was written to it afterwards is not known."""
    api_, client = api
    data = started() + finished(3)
    worker.put(data, 0)
    worker.put(b"one\ntwo\n", 0, "rank-0.log")
    body = {"exit": {"code": 0}, "sizes": {"events.jsonl": len(data), "rank-0.log": 3}}
    for _ in range(2):  # A report that is sent again adds nothing.
        assert worker.post("exit", body).json()["closed"] is True
    view = client.get(f"/api/v1/runs/{run_of(api_, worker).id}").json()
    assert view["state"] == "completed"
    assert view["warnings"] == [
        "Attempt 1: bytes 3 to 8 of rank-0.log are lost: the sender's file became shorter."
    ]


def test_append_is_limited_to_one_mebibyte(worker):
    assert worker.put(b"x" * (1 << 20), 0, "rank-0.log").status_code == 200
    answer = worker.put(b"x" * ((1 << 20) + 1), 1 << 20, "rank-0.log")
    assert answer.status_code == 413
    assert answer.json()["code"] == "too_large"

    def unstated():
        yield b"x" * (1 << 20)
        yield b"x"

    assert worker.put(unstated(), 1 << 20, "rank-0.log").status_code == 413
    assert worker.offsets() == {"rank-0.log": 1 << 20}


@pytest.mark.parametrize(
    "name", ["..%2Fx.log", "rank-x.log", "a.log", "events.jsonl.x", ".log", "rank-0.log%00"]
)
def test_only_streams_of_the_attempt_are_valid_names(api, worker, name):
    answer = worker.put(b"x", 0, name)
    assert answer.status_code in {404, 422}
    assert worker.offsets() == {}


@pytest.mark.parametrize("offset", ["-1", "x", "1.5", "99999999999999999999", ""])
def test_offset_must_be_a_whole_number(worker, offset):
    answer = worker.put(b"x", offset)
    assert answer.status_code == 422
    assert answer.headers["content-type"] == "application/problem+json"


@pytest.mark.parametrize("version", ["0", "2", "x", "99999999", ""])
def test_an_unsupported_protocol_version_is_rejected_with_the_supported_ones(worker, version):
    answer = worker.put(b"x", 0, **{"Lehr-Protocol": version})
    assert answer.status_code == 400
    assert answer.json()["code"] == "wrong_protocol"
    assert "1" in answer.json()["hint"]
    assert worker.offsets() == {}


@pytest.mark.parametrize("limits", [{"appends_waiting": 20}, {"append_bytes_waiting": 20}])
def test_append_under_load_is_rejected_with_a_retry_time(tmp_path, limits):
    """The store is busy: the places fill, and the next append is rejected."""
    with api_client(tmp_path, **limits) as (api_, client):
        run = client.post("/api/v1/runs", json={"spec": RUN_SPEC}).json()["id"]
        begin(api_.store, run)
        worker = Worker(client, run)
        gate, commits = threading.Event(), []
        api_.store._appender.call(lambda _: gate.wait(timeout=60))
        api_.store._index_writer.set_trace_callback(
            lambda statement: commits.append(statement) if statement == "COMMIT" else None
        )
        answers = []
        names = [f"rank-{n}.log" for n in range(20)]
        threads = [
            threading.Thread(target=lambda name=name: answers.append(worker.put(b"x", 0, name)))
            for name in names
        ]
        for thread in threads:
            thread.start()
        until(lambda: api_.services.intake._pending == 20, within_s=20, what="a full intake")
        refused = worker.put(b"x", 0, "rank-99.log")
        assert refused.status_code == 429
        assert int(refused.headers["retry-after"]) >= 1
        assert refused.json()["code"] == "busy"
        # Reading is not held up by it.
        assert client.get("/api/v1/runs").status_code == 200
        gate.set()
        for thread in threads:
            thread.join(timeout=30)
        assert [answer.status_code for answer in answers] == [200] * 20
        assert len(commits) == 1, "all that waited share one transaction"
        assert worker.put(b"x", 0, "rank-99.log").status_code == 200


# ------------------------------------------------------------------------------- heartbeats and exits


def test_a_heartbeat_answer_contains_the_orders(api, worker):
    api_, client = api
    run = run_of(api_, worker).id
    reply = worker.heartbeat(step=5)
    assert reply["orders"] == {
        "desired": "run",
        "checkpoint_seq": 0,
        "reason": "",
        "keep": [],
    }
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


def test_bytes_that_arrive_after_the_end_are_stored(api, worker):
    api_, _ = api
    ingest(api_.store, worker.id, started())
    end(api_.store, run_of(api_, worker).id)
    held = worker.offsets()["events.jsonl"]
    assert worker.put(metrics(1, 2), held).status_code == 200


@pytest.mark.parametrize(
    "body",
    [{}, {"exit": 5}, {"exit": {}, "sizes": {"x": -1}}, {"exit": {}, "sizes": []}, []],
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


def test_shim_may_end_although_its_run_cannot_be_finalized(api, worker, monkeypatch):
    api_, _ = api
    monkeypatch.setattr("lehr.cluster.attempt_protocol.finalize", lambda *_: 1 / 0)
    worker.put(started(), 0)
    answer = worker.post("exit", {"exit": {"code": 0}, "sizes": {}})
    assert answer.json()["closed"], answer.text
    assert run_of(api_, worker).state == "running"
    assert api_.store.attempts.get(worker.id).exited_at is not None


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
