"""The whole server beside a worker that sends anything: two healthy runs train to their end."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import asynccontextmanager, contextmanager
from pathlib import Path
from typing import Any, get_args

import pytest
from pydantic import BaseModel
from starlette.testclient import TestClient

from lehr.app.presenters.cluster import ClusterPresenter
from lehr.base.signed_tokens import AttemptTokens
from lehr.control.exits import ExitNote, LastWord
from lehr.control.lifecycle import RunState
from lehr.store import Store
from lehr.store.upkeep import backup, integrity
from lehr_api.app import create_app
from lehr_api.routes import attempts
from lehr_api.services import assemble
from lehr_api.settings import Settings
from lehr_testing import hostile
from lehr_testing.api import BASE, TOKEN, finished, line, share_routes
from lehr_testing.dispatching import Bench
from lehr_testing.stores import memory_folder

PAGES = ("", "/metrics", "/checkpoints", "/alerts", "/events", "/samples", "/logs", "/export")


@contextmanager
def served(bench: Bench) -> Iterator[TestClient]:
    """The API over the store and the dispatcher of the bench."""

    @asynccontextmanager
    async def opened(given: Settings) -> Any:
        store, dispatcher = bench.store, bench.dispatcher
        views = ClusterPresenter(store, dispatcher.cluster, dispatcher.queue_order, embedded=True)
        services = assemble(given, store, dispatcher, views)
        services.hub.start()
        try:
            yield services
        finally:
            await services.hub.stop()

    app = create_app(Settings(home=bench.home, token=TOKEN), services=opened)
    share_routes(app)
    with TestClient(app, base_url=BASE, headers={"Authorization": f"Bearer {TOKEN}"}) as client:
        yield client


class Worker:
    """A run that the dispatcher has started, and what the shipper of its attempt sends."""

    def __init__(self, bench: Bench, name: str) -> None:
        self.bench = bench
        self.run, self.attempt = bench.running(name)
        token = AttemptTokens(bench.home).token(self.attempt)
        self.headers = {"Authorization": f"Bearer {token}", "Lehr-Protocol": "1"}
        self.step = 0

    @property
    def state(self) -> str:
        return self.bench.state(self.run)[0]

    def put(self, client: TestClient, data: bytes, name: str = "events.jsonl") -> Any:
        offset = self.bench.store.streams.sizes(self.attempt).get(name, 0)
        url = f"/api/v1/attempts/{self.attempt}/streams/{name}"
        return client.put(url, params={"offset": offset}, content=data, headers=self.headers)

    def post(self, client: TestClient, what: str, body: bytes) -> Any:
        url = f"/api/v1/attempts/{self.attempt}/{what}"
        headers = {**self.headers, "Content-Type": "application/json"}
        return client.post(url, content=body, headers=headers)

    def trains(self, client: TestClient) -> None:
        """Log a step, and report."""
        self.step += 1
        record = line("metrics", step=self.step, tokens=1, values={"loss": 1.0 / self.step})
        assert self.put(client, record).status_code == 200
        beat = self.post(client, "heartbeat", json.dumps({"step": self.step}).encode())
        assert (beat.status_code, beat.json()["fenced"]) == (200, False)
        assert self.state == "running"

    def completes(self, client: TestClient) -> None:
        assert self.put(client, finished(self.step)).status_code == 200
        sizes = self.bench.store.streams.sizes(self.attempt)
        self.bench.listed.pop(self.attempt)
        body = json.dumps({"exit": {"code": 0}, "sizes": sizes}).encode()
        assert self.post(client, "exit", body).json()["closed"]
        assert self.state == "completed"


def send(client: TestClient, bench: Bench, odd: Worker, what: str, body: bytes) -> None:
    if what == "record":
        answer = odd.put(client, body)
        assert answer.status_code == 200, answer.text[:500]
        return
    if what == "listed":
        try:
            note = json.loads(body)
        except (ValueError, RecursionError):
            return  # Its agent could not read it, either.
        bench.listed[odd.attempt] = {"state": "ended", "gpus": [0], "exit": note}
        return
    answer = odd.post(client, what, body)
    assert answer.status_code < 500, answer.text[:500]


def lives(client: TestClient, bench: Bench, messages: list[tuple[str, bytes]]) -> list[Worker]:
    """Let two healthy runs train while another one sends all of that. Return the two."""
    healthy = [Worker(bench, name) for name in ("first", "second")]
    odd = Worker(bench, "odd")
    for number, (what, body) in enumerate(messages):
        send(client, bench, odd, what, body)
        if number % 4 == 3 or what in {"exit", "listed"}:
            for one in healthy:
                one.trains(client)
            # An exit that an agent lists is taken after 20 s.
            bench.tick(25.0 if what == "listed" else 1.0)
        if RunState(odd.state).ended or bench.state(odd.run)[1] > 1:
            see(client, odd)
            bench.listed.pop(odd.attempt, None)
            odd = Worker(bench, "odd")
    see(client, odd)
    return healthy


def see(client: TestClient, odd: Worker) -> None:
    """Look at it as a person does."""
    for page in PAGES:
        answer = client.get(f"/api/v1/runs/{odd.run}{page}", params={"format": "jsonl"})
        assert answer.status_code < 500, f"{page}: {answer.text[:500]}"


MESSAGES = [
    ("record", hostile.line(hostile.fields("checkpoint") | {"step": "9223372036854775808"})),
    ("heartbeat", hostile.message(hostile.MESSAGES["heartbeat"], ("step",), "1e400")),
    ("copies", hostile.message(hostile.MESSAGES["copies"], ("copies", 0, "path"), '"\\ud800"')),
    ("exit", hostile.message(hostile.MESSAGES["exit"], ("exit", "code"), "[]")),
    ("listed", hostile.message(hostile.MESSAGES["exit"]["exit"], ("finished",), '"text"')),
]


def test_worker_with_an_odd_message_of_each_kind_harms_its_own_run_alone():
    with memory_folder() as folder, pytest.MonkeyPatch.context() as patch:
        bench = Bench(folder, patch, gpus=3)
        with served(bench) as client:
            healthy = lives(client, bench, MESSAGES)
        bench.restart()
        with served(bench) as client:
            for _ in range(3):
                bench.tick(25.0)
                for one in healthy:
                    one.trains(client)
            for one in healthy:
                one.completes(client)
            Worker(bench, "afterwards").completes(client)
        bench.store.close()
        sound(bench.home, healthy)


def sound(home: Path, healthy: list[Worker]) -> None:
    """Check the record, rebuild its index, and open it again."""
    assert [found for found in integrity.check(home) if found.level == "error"] == []
    backup.rebuild(home)
    with Store.open(home) as store:
        for one in healthy:
            losses = store.series.read(one.run, "loss", exact=True).y
            assert losses == [1.0 / step for step in range(1, one.step + 1)]


def test_messages_have_every_field_of_their_schemas():
    def covers(value: Any, model: type[BaseModel]) -> None:
        assert set(value) == set(model.model_fields), model
        for name, field in model.model_fields.items():
            for inner in (field.annotation, *get_args(field.annotation)):
                if isinstance(inner, type) and issubclass(inner, BaseModel):
                    covers(value[name][0] if isinstance(value[name], list) else value[name], inner)

    covers(hostile.MESSAGES["heartbeat"], attempts.HeartbeatMessage)
    covers(hostile.MESSAGES["copies"], attempts.CopiesReport)
    covers(hostile.MESSAGES["exit"], attempts.ExitMessage)
    covers(hostile.MESSAGES["exit"]["exit"], ExitNote)
    assert set(hostile.MESSAGES["exit"]["exit"]["finished"]) == set(LastWord.model_fields)
