"""The streams of an attempt: bytes by offset, stored exactly once."""

import random
import threading

import pytest

from lehr_testing.api import RUN_SPEC, Worker, api_client, begin, finished, metrics, run_of, started
from lehr_testing.waiting import until


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
        "Attempt 1: rank-0.log became shorter, 3 of 8 bytes: what was written to it later is lost."
    ]


def test_stream_that_vanishes_while_it_is_written_is_an_alert_at_once(api, worker):
    api_, client = api
    data = started() + metrics(1, 4)
    worker.put(data, 0)
    run = run_of(api_, worker).id
    assert client.get(f"/api/v1/runs/{run}/alerts").json() == []
    for _ in range(2):
        assert worker.post("heartbeat", {"shorter": {"events.jsonl": 0}}).status_code == 200
    [alert] = client.get(f"/api/v1/runs/{run}/alerts").json()
    assert (alert["code"], alert["step"], alert["sure"]) == ("lost_records", 4, "certain")
    lost = f"events.jsonl became shorter, 0 of {len(data)} bytes: "
    assert lost in alert["seen"]
    assert "earlier checkpoints may be gone, too: `lehr db check` lists them" in alert["advice"]
    assert [lost in text for text in client.get(f"/api/v1/runs/{run}").json()["warnings"]] == [True]


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
