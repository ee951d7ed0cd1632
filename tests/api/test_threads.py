"""Requests of workers and long reads have threads of their own: people are answered meanwhile."""

from __future__ import annotations

import socket
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from urllib.parse import urlsplit

import httpx
import pytest

from lehr.app.services import checkpoints as checkpoint_service
from lehr.app.services import logs as log_service
from lehr.errors import NotFound
from lehr_api.threads import LONG_READS, SUBMISSIONS, VERIFICATIONS, WORKERS
from lehr_testing import seeding
from lehr_testing.api import TOKEN, attempt_token, begin, served
from lehr_testing.stores import run_spec
from lehr_testing.waiting import until

ANYIOS_THREADS = 40
"""Threads of the application, if nothing else is chosen."""


def test_people_are_answered_while_many_workers_wait(tmp_path, monkeypatch):
    with served(tmp_path / "home") as (api, address):
        run = api.store.runs.create(run_spec("busy")).id
        attempt = begin(api.store, run)
        token = attempt_token(run, 1)
        let_go, waiting = threading.Event(), []

        def on_exit(*_):
            waiting.append(1)
            let_go.wait(60)
            return {"closed": True, "offsets": {}}

        monkeypatch.setattr(api.dispatcher, "on_exit", on_exit)
        headers = {"Authorization": f"Bearer {token}", "Lehr-Protocol": "1"}
        path = f"{address}/api/v1/attempts/{attempt}/exit"

        def leave() -> int:
            body = {"exit": {"code": 0}, "sizes": {}}
            return httpx.post(path, json=body, headers=headers, timeout=60).status_code

        try:
            with ThreadPoolExecutor(ANYIOS_THREADS + 10) as workers:
                answers = [workers.submit(leave) for _ in range(ANYIOS_THREADS + 10)]
                until(
                    lambda: len(waiting) == WORKERS.threads,
                    within_s=30,
                    what="all threads to be used",
                )
                person = {"Authorization": f"Bearer {TOKEN}"}
                runs = httpx.get(f"{address}/api/v1/runs", headers=person, timeout=30)
                assert runs.status_code == 200, runs.text
                assert run in runs.text
                assert len(waiting) == WORKERS.threads
                let_go.set()
                assert {answer.result() for answer in answers} == {200}
        finally:
            let_go.set()


def raw(address: str, method: str, path: str) -> socket.socket:
    at = urlsplit(address)
    made = socket.create_connection((at.hostname or "", at.port or 0), timeout=30)
    lines = [f"{method} {path} HTTP/1.1", "Host: 127.0.0.1", f"Authorization: Bearer {TOKEN}"]
    made.sendall("\r\n".join([*lines, "Content-Length: 0", "", ""]).encode())
    return made


def test_long_reads_leave_threads_and_end_with_their_clients(tmp_path, monkeypatch):
    began, ended = [], []

    def slow(*_, stopped, **__):
        began.append(1)
        while not stopped():
            time.sleep(0.01)
        ended.append(1)
        raise NotFound("nobody reads this")

    monkeypatch.setattr(log_service, "search_log", slow)
    monkeypatch.setattr(
        checkpoint_service, "verify", lambda *given: slow(*given[:-1], stopped=given[-1])
    )
    with served(tmp_path / "home") as (api, address):
        run = api.store.runs.create(run_spec("busy")).id
        for pool, method, path in (
            (LONG_READS, "GET", f"/api/v1/runs/{run}/logs/rank-0.log/search?text=a"),
            (VERIFICATIONS, "POST", f"/api/v1/runs/{run}/checkpoints/5/verify"),
        ):
            began.clear()
            ended.clear()
            clients = [raw(address, method, path) for _ in range(ANYIOS_THREADS + 5)]
            until(
                lambda n=pool.threads: len(began) == n, within_s=30, what="its threads to be used"
            )
            person = {"Authorization": f"Bearer {TOKEN}"}
            assert (
                httpx.get(f"{address}/api/v1/runs", headers=person, timeout=30).status_code == 200
            )
            assert (len(began), len(ended)) == (pool.threads, 0)
            for client in clients:
                client.close()
            until(lambda: len(ended) == ANYIOS_THREADS + 5, within_s=30, what="all of them to end")


@pytest.mark.parametrize(
    ("path", "body"),
    [
        ("runs", {"spec": {}}),
        ("runs/RUN/fork", {"changes": {}}),
        ("sweeps", {"spec": {}}),
        ("sweeps/SWEEP/extend", {}),
        ("sweeps/SWEEP/transfer", {"spec": {}}),
        ("rollouts", {"spec": {}}),
        ("checks", {"spec": {}, "kind": "sweep"}),
    ],
)
def test_submissions_that_take_long_leave_threads_to_others(tmp_path, monkeypatch, path, body):
    let_go, began = threading.Event(), []

    def slow(*_, **__):
        began.append(1)
        let_go.wait(60)
        raise NotFound("it took too long")

    for name in (
        *("sweeps.launch_sweep", "sweeps.extend_sweep"),
        *("sweeps.transfer_rate", "rollouts.launch_rollout"),
    ):
        monkeypatch.setattr(f"lehr_api.routes.{name}", slow)
    monkeypatch.setattr("lehr.app.services.submit.check", slow)
    monkeypatch.setattr("lehr.app.services.submit.submit_run", slow)
    monkeypatch.setattr("lehr.app.services.submit.fork_run", slow)
    person = {"Authorization": f"Bearer {TOKEN}"}
    # One client: each has a context of TLS, which takes longer to make than the test.
    several = httpx.Limits(max_connections=None)
    with served(tmp_path / "home") as (api, address), httpx.Client(limits=several) as client:
        sweep, runs = seeding.create_sweep(api.store, seeding.lr_sweep("grid", [1e-4, 1e-3]))
        path = path.replace("SWEEP", sweep.id).replace("RUN", runs[0].id)
        url = f"{address}/api/v1/{path}"

        def submit(_) -> int:
            return client.post(url, json=body, headers=person, timeout=60).status_code

        try:
            with ThreadPoolExecutor(ANYIOS_THREADS + 10) as people:
                answers = people.map(submit, range(ANYIOS_THREADS + 10))
                threads = SUBMISSIONS.threads
                until(lambda: len(began) == threads, within_s=30, what="its threads to be used")
                listed = client.get(f"{address}/api/v1/runs", headers=person, timeout=30)
                assert listed.status_code == 200, listed.text
                assert len(began) == threads
                let_go.set()
                assert set(answers) == {404}
        finally:
            let_go.set()


def test_a_server_that_stops_does_not_wait_for_a_long_read(tmp_path, monkeypatch):
    began, ended = [], []

    def slow(*given):
        began.append(1)
        while not given[-1]():
            time.sleep(0.01)
        ended.append(1)
        raise NotFound("nobody reads this")

    monkeypatch.setattr(checkpoint_service, "verify", slow)
    with served(tmp_path / "home") as (api, address):
        run = api.store.runs.create(run_spec("busy")).id
        client = raw(address, "POST", f"/api/v1/runs/{run}/checkpoints/5/verify")
        until(lambda: bool(began), within_s=30, what="the verification to begin")
    until(lambda: bool(ended), within_s=30, what="the verification to end")
    client.close()


def test_error_of_a_long_read_is_answered_as_any_other(tmp_path):
    with served(tmp_path / "home") as (api, address):
        run = api.store.runs.create(run_spec("new")).id
        person = {"Authorization": f"Bearer {TOKEN}"}
        path = f"{address}/api/v1/runs/{run}"
        verified = httpx.post(f"{path}/checkpoints/5/verify", headers=person, timeout=30)
        found = httpx.get(f"{path}/logs/rank-0.log/search?text=a", headers=person, timeout=30)
        assert (verified.status_code, found.status_code) == (404, 404)
