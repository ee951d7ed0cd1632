"""Requests of workers have threads of their own: people are answered while all of them wait."""

from __future__ import annotations

import threading
from concurrent.futures import ThreadPoolExecutor

import httpx

from lehr_api.worker_threads import THREADS
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
                until(lambda: len(waiting) == THREADS, within_s=30, what="all threads to be used")
                person = {"Authorization": f"Bearer {TOKEN}"}
                runs = httpx.get(f"{address}/api/v1/runs", headers=person, timeout=30)
                assert runs.status_code == 200, runs.text
                assert run in runs.text
                assert len(waiting) == THREADS
                let_go.set()
                assert {answer.result() for answer in answers} == {200}
        finally:
            let_go.set()
