"""The background thread diagnoses each ended run, once however often it changes."""

from __future__ import annotations

import threading

import pytest

from lehr.app.presenters.alerts import BackgroundDiagnosis
from lehr.control.lifecycle import RunState
from lehr.errors import StoreUnavailable
from lehr.store import Change
from lehr_testing.api import RUN_SPEC, api_client, begin, end, ingest, metrics, started
from lehr_testing.waiting import until


class Looks:
    """A fake presenter that records diagnosed runs, one at a time, when the test allows it."""

    def __init__(self) -> None:
        self.seen: list[str] = []
        self.entered = threading.Semaphore(0)
        self.let = threading.Event()

    def diagnose(self, run):
        self.seen.append(run.id)
        self.entered.release()
        assert self.let.wait(20)
        return False


@pytest.fixture
def scene(tmp_path):
    with api_client(tmp_path) as (api, client):
        looks = Looks()
        rounds = BackgroundDiagnosis(api.store, looks)
        yield api, client, looks, rounds
        looks.let.set()
        rounds.stop()


def ended(api, client) -> str:
    run = client.post("/api/v1/runs", json={"spec": RUN_SPEC}).json()["id"]
    ingest(api.store, begin(api.store, run), started() + metrics(1, 3))
    end(api.store, run, RunState.FAILED)
    return run


def test_ended_runs_are_diagnosed_at_start_and_when_they_end(scene):
    api, client, looks, rounds = scene
    first = ended(api, client)
    looks.let.set()
    rounds.start()
    until(lambda: looks.seen == [first], within_s=20, what="the first look")
    second = ended(api, client)
    until(lambda: second in looks.seen, within_s=20, what="the look at the second")


def test_alert_of_a_slow_rank_names_the_node_and_gpu_of_its_attempt(scene):
    api, client, _, _ = scene
    run = client.post("/api/v1/runs", json={"spec": RUN_SPEC}).json()["id"]
    slow = {"ranks/max_own_time_s": 0.4, "ranks/median_own_time_s": 0.2, "ranks/slowest": 0.0}
    ingest(api.store, begin(api.store, run), started() + metrics(1, 70, **slow))
    alerts = {one["code"]: one for one in client.get(f"/api/v1/runs/{run}/alerts").json()}
    assert "wait for rank 0 (n1, GPU 0) since step 11" in alerts["straggler"]["message"]


def test_rows_of_live_runs_are_not_read(scene, monkeypatch):
    api, client, looks, rounds = scene
    looks.let.set()
    live = [client.post("/api/v1/runs", json={"spec": RUN_SPEC}).json()["id"] for _ in range(3)]
    for run in live[1:]:
        ingest(api.store, begin(api.store, run), started() + metrics(1, 3))
    read: list[str] = []
    real = api.store.runs.get
    monkeypatch.setattr(api.store.runs, "get", lambda run_id: read.append(run_id) or real(run_id))
    rounds.start()
    for run in live:
        api.store.notify(Change("run", run))
    last = ended(api, client)
    until(
        lambda: last in looks.seen and not rounds.changed.due,
        within_s=20,
        what="the look at the last",
    )
    assert set(looks.seen) == {last}
    assert not set(read).intersection(live)


@pytest.mark.parametrize("error", [StoreUnavailable("no"), OSError(28, "No space left on device")])
def test_unreadable_store_does_not_end_the_diagnoses(scene, monkeypatch, error):
    api, client, looks, rounds = scene
    looks.let.set()
    failed = threading.Event()

    def fail(run_ids):
        monkeypatch.undo()
        failed.set()
        raise error

    monkeypatch.setattr(api.store.runs, "ended_among", fail)
    rounds.start()
    first = ended(api, client)
    assert failed.wait(20)
    second = ended(api, client)
    until(lambda: second in looks.seen, within_s=20, what="the look at the second")
    assert first != second


def test_stop_does_not_wait_for_pending_diagnoses(scene):
    api, client, looks, rounds = scene
    for _ in range(3):
        ended(api, client)
    rounds.start()
    assert looks.entered.acquire(timeout=20)
    looks.let.set()
    rounds.stop()
    assert not rounds.changed._thread.is_alive()
