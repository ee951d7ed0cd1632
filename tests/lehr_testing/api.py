"""The API over a real store, with a fake dispatcher: no Ray, no processes.

Messages of workers go through the real handlers of the dispatcher.
"""

from __future__ import annotations

import asyncio
import copy
import hashlib
import json
import threading
import time
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import uvicorn
from fastapi import APIRouter, FastAPI
from starlette.routing import BaseRoute
from starlette.testclient import TestClient

from lehr.cluster.attempt_protocol import AttemptProtocol
from lehr.cluster.heartbeats import HeartbeatTable
from lehr.control.lifecycle import RunState
from lehr.control.resources import Gpu, Node
from lehr.errors import NotFound
from lehr.node.gpu_inventory import LOGICAL
from lehr.schemas.cluster import ClusterView, GpuView, NodeView, QueueEntry
from lehr.store import Store
from lehr_api.app import create_app
from lehr_api.services import Services, assemble
from lehr_api.settings import Settings
from lehr_testing.paths import ROOT
from lehr_testing.seeding import HELD_OUT
from lehr_testing.server import free_port
from lehr_testing.stores import fresh_store
from lehr_testing.waiting import until

TOKEN = "the-people's-token"
BASE = "http://127.0.0.1:5347"

RUN_SPEC: dict[str, Any] = {
    "kind": "run",
    "name": "one",
    "train": {
        "model": "tiny",
        "data": {"corpus": {"kind": "stdlib"}, "tokenizer": "byte"},
        "batch": {"sequences": 4, "sequence_length": 64},
        "steps": 100,
    },
}
SWEEP_SPEC: dict[str, Any] = {
    "kind": "sweep",
    "name": "grid",
    "metric": {"name": "val/loss", "goal": "minimize"},
    "parameters": {"train.optimizer.lr": {"values": [1e-4, 1e-3, 1e-2]}},
    "run": {"train": RUN_SPEC["train"]},
}


@dataclass
class FakeDispatcher:
    """Implement the dispatcher's interface for the API, and count calls."""

    largest: int = 8
    woken: int = 0
    silent: dict[str, Any] = field(default_factory=dict)
    liveness_of: Any = None
    """The attempts whose liveness was asked for last; None: of all."""
    handlers: Any = None
    waiting: list[QueueEntry] = field(default_factory=list)
    excluded: dict[str, str] = field(default_factory=dict)
    separate: list[str] = field(default_factory=list)
    """Nodes that do not share the folder of runs."""

    def start(self) -> None: ...

    def stop(self) -> None: ...

    def wake(self) -> None:
        self.woken += 1

    def cluster(self) -> ClusterView:
        gpus = [GpuView(index=n, name="logical GPU") for n in range(self.largest)]
        node = NodeView(
            name="n1",
            address="127.0.0.1",
            alive=True,
            logical=True,
            gpus=gpus,
            excluded=self.excluded.get("n1"),
        )
        return ClusterView(state="up", nodes=[node], gpus_total=self.largest, gpus_busy=0)

    def on_heartbeat(self, attempt_id: str, payload: dict[str, Any]) -> dict[str, Any]:
        return self.handlers.on_heartbeat(attempt_id, payload)

    def heartbeat_from_memory(
        self, attempt_id: str, payload: dict[str, Any]
    ) -> dict[str, Any] | None:
        return self.handlers.heartbeat_from_memory(attempt_id, payload)

    def on_exit(self, attempt_id: str, payload: dict[str, Any]) -> dict[str, Any]:
        return self.handlers.on_exit(attempt_id, payload)

    def heartbeat_at(self, attempt_id: str) -> float | None:
        return self.handlers._heartbeats.seen(attempt_id).at

    def since_tick_s(self) -> float:
        return 2.5

    def liveness(self, attempts: Any = None) -> dict[str, Any]:
        self.liveness_of = attempts
        return self.silent

    def queue(self) -> list[QueueEntry]:
        return self.waiting

    def exclude_node(self, name: str, reason: str) -> None:
        self.check_node(name)
        self.excluded[name] = reason

    def readmit_node(self, name: str) -> None:
        self.check_node(name)
        self.excluded.pop(name, None)

    def check_node(self, name: str) -> None:
        if name != "n1":
            raise NotFound(f"The cluster has no node {name!r}.", hint="It has: n1.")

    def nodes(self) -> list[Node]:
        gpus = tuple(Gpu(index, LOGICAL) for index in range(self.largest))
        names = self.separate or ["n1", "n2"]
        return [Node(name, gpus, runs_folder=name if self.separate else None) for name in names]

    def can_ever_place(self, resources: Any) -> str | None:
        if resources.gpus <= self.largest:
            return None
        return f"needs {resources.gpus} GPUs; this cluster has {self.largest} x logical GPU"


_shared: dict[int, tuple[APIRouter, BaseRoute]] = {}
"""By the identity of the included router, which is kept."""


def share_routes(app: FastAPI) -> None:
    """Use the routes that this process built for its first application.

    FastAPI builds the validators of all routes at the first request to an application, which takes
    longer than most tests.
    """
    routes = app.router.routes
    for index, route in enumerate(routes):
        included = getattr(route, "original_router", None)
        if included is not None:
            _, routes[index] = _shared.setdefault(id(included), (included, route))


class Api:
    """An application and its parts."""

    def __init__(self, home: Path, **changes: Any) -> None:
        self.settings = Settings(**{"home": home, "token": TOKEN, **changes})
        self.dispatcher = FakeDispatcher()
        self.services: Services | None = None
        self.app = create_app(self.settings, services=self._open)
        share_routes(self.app)

    @property
    def store(self) -> Store:
        return self.services.store

    @asynccontextmanager
    async def _open(self, settings: Settings) -> AsyncIterator[Services]:
        with fresh_store(settings.home) as store:
            self.heartbeats = HeartbeatTable()
            self.dispatcher.handlers = AttemptProtocol(store, self.heartbeats, self.dispatcher.wake)
            self.services = assemble(settings, store, self.dispatcher, self.dispatcher)
            self.services.hub.start()
            try:
                yield self.services
            finally:
                await self.services.hub.stop()


@contextmanager
def api_client(home: Path, **changes: Any) -> Iterator[tuple[Api, TestClient]]:
    """The application without a network, and a client that carries the token."""
    api = Api(home, **changes)
    headers = {"Authorization": f"Bearer {TOKEN}"}
    with TestClient(api.app, base_url=BASE, headers=headers, follow_redirects=False) as client:
        yield api, client


@contextmanager
def served(home: Path, **changes: Any) -> Iterator[tuple[Api, str]]:
    """The application behind a real socket; yields its address."""
    port = free_port()
    api = Api(home, port=port, **changes)

    def close() -> None:
        if api.services is not None:
            hub = api.services.hub
            hub._loop.call_soon_threadsafe(hub.close)

    with served_by(api.app, port=port, before_the_end=close) as address:
        yield api, "http://{}:{}".format(*address)


@contextmanager
def served_by(
    app: Any, *, port: int | None = None, before_the_end: Callable[[], None] | None = None
) -> Iterator[tuple[str, int]]:
    """Any ASGI application behind a real socket, with Lehr's HTTP parser."""
    port = free_port() if port is None else port
    config = uvicorn.Config(
        app,
        port=port,
        log_config=None,
        access_log=False,
        server_header=False,
        loop="asyncio",
        http="httptools",
        ws="none",
        timeout_graceful_shutdown=5,
    )
    server = uvicorn.Server(config)
    thread = threading.Thread(target=lambda: asyncio.run(server.serve()), daemon=True)
    thread.start()
    try:
        until(lambda: server.started, within_s=20, what="the server to listen")
        yield "127.0.0.1", port
    finally:
        if before_the_end is not None:
            before_the_end()
        server.should_exit = True
        thread.join(timeout=20)
        assert not thread.is_alive(), "the server did not stop"


# ------------------------------------------------------------------- messages of an attempt


def documented_answer(schema: str) -> Any:
    """The example of the API's description for answers of that schema."""
    return json.loads((ROOT / "docs/generate/examples.json").read_text())["answers"][schema]


def attempt_token(run_id: str, number: int = 1) -> str:
    return f"token-of-{run_id}-{number}"


class Worker:
    """Send requests as the shipper of one attempt does."""

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


def run_of(api_, worker):
    """Return the run that the worker's attempt belongs to."""
    return api_.store.runs.get(worker.id.rpartition("-")[0])


def begin(store: Store, run_id: str, number: int = 1) -> str:
    """Begin an attempt of a queued run on one GPU of n1; return its id."""
    token = attempt_token(run_id, number)
    attempt = store.transitions.begin_attempt(
        run_id,
        placement=[{"node": "n1", "gpus": [0]}],
        resume_from=None,
        token_sha256=hashlib.sha256(token.encode()).hexdigest(),
    )
    assert attempt.number == number
    return attempt.id


def line(kind: str, **fields: Any) -> bytes:
    return json.dumps({"kind": kind, "time": time.time(), **fields}).encode() + b"\n"


def started(attempt: int = 1) -> bytes:
    return line("started", attempt=attempt, device="cpu", parameters=1000, total_steps=100)


def metrics(first: int, last: int, **values: Any) -> bytes:
    """One record a step, with train/loss falling unless it is given."""
    return b"".join(
        line(
            "metrics",
            step=step,
            tokens=step * 256,
            values={"train/loss": 10.0 / step, "step_time_s": 0.5, **values},
        )
        for step in range(first, last + 1)
    )


def evaluation(step: int, loss: float | str, held_out: str | None = HELD_OUT) -> bytes:
    """An evaluation on the held-out set of that digest."""
    values = {"val/loss": loss}
    return line(
        "evaluation", step=step, tokens=step * 256, values=values, validation_digest=held_out
    )


def finished(step: int, outcome: str = "completed", **fields: Any) -> bytes:
    return line("finished", step=step, outcome=outcome, **fields)


def ingest(store: Store, attempt_id: str, data: bytes, name: str = "events.jsonl") -> None:
    """Append at the end of a stream, and apply its events."""
    store.streams.append(attempt_id, name, store.streams.sizes(attempt_id).get(name, 0), data)
    store.event_applier.apply(attempt_id)


def end(
    store: Store, run_id: str, new: RunState = RunState.COMPLETED, message: str | None = None
) -> None:
    """End the run as the dispatcher does when the attempt has exited."""
    run = store.runs.get(run_id)
    moved = store.transitions.apply(
        run_id,
        old=RunState(run.state),
        new=new,
        attempt=run.attempt,
        cause=new.value,
        message=message,
        actor="dispatcher",
    )
    assert moved
    store.attempts.close(f"{run_id}-{run.attempt}")


# ---------------------------------------------------------------------------------- submissions


def changed(spec: dict[str, Any], path: str, value: Any) -> dict[str, Any]:
    """Return a copy of the spec with another value at the path."""
    spec = copy.deepcopy(spec)
    *way, last = path.split(".")
    here = spec
    for name in way:
        here = here.setdefault(name, {})
    here[last] = value
    return spec


def submit(client: TestClient, **fields: Any) -> Any:
    """Submit a run with these fields of its spec, and return it."""
    answer = client.post("/api/v1/runs", json={"spec": {**RUN_SPEC, **fields}})
    assert answer.status_code == 201, answer.text
    return answer.json()


def counts(api: Api) -> tuple[int, int]:
    """Return the numbers of runs and of sweeps."""
    return api.store.runs.page(archived=None).total, api.store.sweeps.page(archived=None).total
