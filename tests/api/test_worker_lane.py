"""The short way of workers' requests: the same answers and effects as the documented routes."""

from __future__ import annotations

import asyncio

import pytest

from lehr.control.lifecycle import Desired, RunState
from lehr.control.liveness import ACCEPTED_WAIT_S
from lehr.specs import RunSpec
from lehr_api import worker_lane
from lehr_api.worker_lane import AT_ONCE, BESIDE_PEOPLE, SMOOTH_S, Turns
from lehr_testing.api import RUN_SPEC, attempt_token, begin, metrics, started


class Worker:
    """Sends requests by the short way, or with a header that only the routes accept."""

    def __init__(self, api, client):
        self.api, self.client = api, client
        self.run_id = client.post("/api/v1/runs", json={"spec": RUN_SPEC}).json()["id"]
        self.attempt = begin(api.store, self.run_id)
        self.remember()

    def remember(self):
        run = self.api.store.runs.get(self.run_id)
        self.api.dispatcher.handlers.publish({self.attempt: run}, senders=1)

    def send(self, method, path, *, by_route=False, **request):
        headers = {"Authorization": f"Bearer {attempt_token(self.run_id)}"}
        # The same version, written so that only the routes take it.
        headers["Lehr-Protocol"] = "0001" if by_route else "1"
        path = f"/api/v1/attempts/{self.attempt}/{path}"
        return self.client.request(method, path, headers=headers, **request)


@pytest.fixture
def worker(api):
    return Worker(*api)


def test_piece_is_appended_by_either_way(worker):
    first, second = started(), metrics(1, 3)
    assert worker.send("PUT", "streams/events.jsonl?offset=0", content=first).json() == {
        "offset": len(first)
    }
    at = f"streams/events.jsonl?offset={len(first)}"
    answer = worker.send("PUT", at, content=second, by_route=True)
    assert answer.json() == {"offset": len(first) + len(second)}
    assert worker.api.store.streams.read(worker.attempt, "events.jsonl") == first + second


REQUESTS = {
    "wrong offset": ("PUT", "streams/events.jsonl?offset=7", {"content": b"{}\n"}),
    "no offset": ("PUT", "streams/events.jsonl", {"content": b"{}\n"}),
    "offset below zero": ("PUT", "streams/events.jsonl?offset=-1", {"content": b"{}\n"}),
    "offset too large": ("PUT", f"streams/events.jsonl?offset={2**61}", {"content": b"{}\n"}),
    "unknown stream": ("PUT", "streams/other.txt?offset=0", {"content": b"{}\n"}),
    "too large": ("PUT", "streams/rank-0.log?offset=0", {"content": b"x" * (2**20 + 1)}),
    "empty": ("PUT", "streams/rank-0.log?offset=0", {"content": b""}),
    "heartbeat": ("POST", "heartbeat", {"json": {"step": 3, "elapsed_s": 1.5}}),
    "heartbeat without a field": ("POST", "heartbeat", {"json": {}}),
    "heartbeat with an invalid field": ("POST", "heartbeat", {"json": {"step": -1}}),
    "heartbeat that is no JSON": ("POST", "heartbeat", {"content": b"{"}),
    "heartbeat that is no object": ("POST", "heartbeat", {"json": [1]}),
}


@pytest.mark.parametrize("name", REQUESTS)
def test_both_ways_give_the_same_answer(worker, name):
    method, path, request = REQUESTS[name]
    short = worker.send(method, path, **request)
    long = worker.send(method, path, **request, by_route=True)
    assert (short.status_code, short.json()) == (long.status_code, long.json())
    names = ("content-type", "lehr-protocol", "cache-control", "x-content-type-options")
    assert {n: short.headers.get(n) for n in names} == {n: long.headers.get(n) for n in names}


@pytest.mark.parametrize("desired", [Desired.RUN, Desired.PAUSE, Desired.CANCEL])
def test_orders_from_memory_equal_those_from_the_store(worker, desired):
    store = worker.api.store
    store.requests.order_checkpoint(worker.run_id)
    if desired is not Desired.RUN:
        store.requests.set_desired(worker.run_id, desired, actor="user")
    worker.remember()
    short = worker.send("POST", "heartbeat", json={"step": 1}).json()
    assert short == worker.send("POST", "heartbeat", json={"step": 1}, by_route=True).json()
    assert short["orders"]["desired"] == {"run": "run", "pause": "pause"}.get(desired, "stop")
    assert short["orders"]["checkpoint_seq"] == 1


def test_ordinary_requests_reach_no_route_and_no_other_middleware(api):
    client = api[1]
    seen = []

    class Spy:
        def __init__(self, app):
            self.app = app

        async def __call__(self, scope, receive, send):
            seen.append(scope["path"].rpartition("/")[2])
            await self.app(scope, receive, send)

    lane = client.app.middleware_stack.lane.app
    assert isinstance(lane, worker_lane.WorkerLane)
    lane.app = Spy(lane.app)
    worker = Worker(*api)
    seen.clear()
    worker.send("PUT", "streams/events.jsonl?offset=0", content=started())
    worker.send("POST", "heartbeat", json={"step": 1})
    assert seen == []
    worker.send("POST", "heartbeat", json={"step": 1}, by_route=True)
    # An attempt that the last tick did not see living is answered from the store.
    worker.api.dispatcher.handlers.publish({}, senders=0)
    worker.send("POST", "heartbeat", json={"step": 1})
    worker.send("GET", "streams")
    assert seen == ["heartbeat", "heartbeat", "streams"]


def test_short_way_requires_the_attempts_token(worker):
    worker.client.headers.clear()
    path = f"/api/v1/attempts/{worker.attempt}/heartbeat"
    for token in ("", "Bearer nonsense", f"Bearer {attempt_token('another')}"):
        headers = {"Lehr-Protocol": "1", "Authorization": token}
        assert worker.client.post(path, json={}, headers=headers).status_code == 401


def test_ended_attempt_is_not_answered_from_memory(tmp_path):
    """Its answer is fenced, which only the store knows until the next tick."""
    from lehr.cluster.loader import SnapshotLoader
    from lehr_testing.dispatching import Bench

    bench = Bench(tmp_path / "bench", pytest.MonkeyPatch(), gpus=2)
    run_id, attempt = bench.running()
    assert isinstance(bench.dispatcher._loader, SnapshotLoader)
    assert set(bench.dispatcher._loader.living) == {attempt}
    assert bench.dispatcher.heartbeat_from_memory(attempt, {"step": 1})["fenced"] is False
    bench.exited(attempt, code=1)
    bench.tick()
    assert bench.state(run_id)[0] == RunState.FAILED
    assert bench.dispatcher.heartbeat_from_memory(attempt, {"step": 1}) is None
    bench.store.close()


def test_heartbeats_ask_many_workers_to_send_less_often_and_a_stopping_one_more_often(
    worker, monkeypatch
):
    monkeypatch.setattr(worker_lane, "SMOOTH_S", 1e9)  # The wait stays what this test says.
    handlers = worker.api.dispatcher.handlers
    living = dict(handlers._living)
    handlers.publish(living, senders=1500)
    for by_route in (False, True):
        answer = worker.send("POST", "heartbeat", json={"step": 1}, by_route=by_route).json()
        assert (answer["interval_s"], answer["send_s"]) == (5.0, 2.5)
    # Requests wait: fewer are asked for, but not of an attempt that stops.
    worker.client.app.middleware_stack._turns.waited_s = 2 * ACCEPTED_WAIT_S
    answer = worker.send("POST", "heartbeat", json={"step": 1}).json()
    assert (answer["interval_s"], answer["send_s"]) == pytest.approx((10.0, 7.5), rel=0.01)
    worker.client.post(f"/api/v1/runs/{worker.run_id}/pause")
    worker.remember()
    for by_route in (False, True):
        answer = worker.send("POST", "heartbeat", json={"step": 1}, by_route=by_route).json()
        assert (answer["interval_s"], answer["send_s"]) == (1.0, 0.5)


def test_run_with_a_waiting_fork_is_not_answered_from_memory(tmp_path):
    """Its orders name the checkpoints that the fork needs, which only the store knows."""
    from lehr_testing.dispatching import Bench

    bench = Bench(tmp_path / "bench", pytest.MonkeyPatch())
    run_id, attempt = bench.running()
    assert bench.dispatcher.heartbeat_from_memory(attempt, {"step": 1}) is not None
    spec = RunSpec.model_validate(bench.store.runs.get(run_id).spec)
    bench.store.runs.create(spec, forked_from=run_id)
    bench.tick()
    assert bench.dispatcher.heartbeat_from_memory(attempt, {"step": 1}) is None
    bench.store.close()


async def test_workers_begin_in_order_and_a_new_request_is_seen_between_them():
    turns, seen = Turns(), []

    async def worker(number):
        await turns.wait()
        seen.append(number)
        if number == 0:  # As for a request that arrives with the first of them.
            loop = asyncio.get_running_loop()
            loop.call_soon(loop.call_soon, seen.append, "person")

    await asyncio.gather(*(worker(number) for number in range(10 * AT_ONCE)))
    assert seen.index("person") <= 2 * AT_ONCE
    seen.remove("person")
    assert seen == sorted(seen)
    assert turns.waited_s > 0


async def test_few_workers_begin_until_the_answer_of_a_person_begins(monkeypatch):
    monkeypatch.setattr("lehr_api.worker_lane.PAUSE_S", 0.0)
    turns, begun, answer = Turns(), [], asyncio.Event()
    while_waiting = []

    async def worker(number):
        await turns.wait()
        begun.append(number)

    async def app(scope, receive, send):
        await answer.wait()
        while_waiting.append(len(begun))
        await send({"type": "http.response.start"})
        await asyncio.gather(*workers)  # The answer goes on: an event stream, a download.

    async def send(message):
        pass

    person = asyncio.create_task(turns.answer_person(app, {}, None, send))
    await asyncio.sleep(0)
    workers = [asyncio.create_task(worker(number)) for number in range(3 * AT_ONCE)]
    for _ in range(10):  # Passes of the loop, without a pause.
        await asyncio.sleep(0)
    answer.set()
    await person
    assert while_waiting[0] <= AT_ONCE + 11 * BESIDE_PEOPLE
    assert begun == list(range(3 * AT_ONCE))


async def test_person_whose_request_fails_holds_back_nobody():
    turns = Turns()

    async def app(scope, receive, send):
        raise ValueError("broken")

    with pytest.raises(ValueError, match="broken"):
        await turns.answer_person(app, {}, None, None)
    assert turns._people == 0


async def test_person_whose_upload_stalls_holds_back_nobody_for_long(monkeypatch):
    monkeypatch.setattr("lehr_api.worker_lane.LONGEST_S", 0.0)
    turns, ends = Turns(), asyncio.Event()

    async def app(scope, receive, send):
        await ends.wait()

    person = asyncio.create_task(turns.answer_person(app, {}, None, None))
    for _ in range(3):
        await asyncio.sleep(0)
    assert turns._people == 0
    ends.set()
    await person
    assert turns._people == 0


async def test_few_requests_soon_end_the_wait_of_many():
    turns = Turns()
    turns.waited_s = 1.0
    for _ in range(60):
        await turns.wait()
        turns._averaged_at -= SMOOTH_S  # So long ago was the last.
    assert turns.waited_s < 0.01
