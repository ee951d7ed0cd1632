"""A dispatcher without Ray and without processes, on a real store.

What agents would say is told to it; what it asks of them is written down.
"""

from __future__ import annotations

import time
from concurrent.futures import Future
from pathlib import Path
from typing import Any

import pytest

from lehr.cluster.bridge_client import AgentRefused
from lehr.cluster.dispatcher import Dispatcher
from lehr.control.step import Action, settled, step
from lehr.specs import load_spec
from lehr.store import Store
from lehr_testing.specs import run as run_spec
from lehr_testing.specs import text_corpus
from lehr_testing.stores import fresh_store


def overlooked(dispatcher: Dispatcher) -> list[Action]:
    """Return what a tick would do now beside repeating calls to agents: nothing between alarms."""
    snapshot = dispatcher._loader.load(dispatcher._inbox.unread.seen())
    return [action for action in step(snapshot) if not settled(action)]


class Clock:
    def __init__(self) -> None:
        self.jumped = 0.0

    def __call__(self) -> float:
        return time.time() + self.jumped


class Bench:
    """A dispatcher with one node whose agent accepts every call; ``tick`` advances the clock."""

    def __init__(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, *, gpus: int = 1) -> None:
        self.home = tmp_path / "home"
        self.gpus = gpus
        self.clock = Clock()
        self.elapsed = 0.0
        self.store = fresh_store(self.home, clock=self.clock)
        self.corpus = text_corpus(tmp_path / "corpus")
        self.asked: list[tuple[str, dict[str, Any]]] = []
        self.listed: dict[str, dict[str, Any]] = {}
        self.refusal: str | None = None
        """Why the agent refuses every start; None: it does not."""
        self._monkeypatch = monkeypatch
        self._begin()

    def restart(self) -> None:
        """Stop the server, and open the same home with another one."""
        self.store.close()
        self.store = Store.open(self.home, clock=self.clock)
        self._begin()
        self.dispatcher.enqueue_all()

    def _begin(self) -> None:
        self.dispatcher = Dispatcher(
            self.store,
            self.home,
            gpus=self.gpus,
            node="n1",
            server_url="http://127.0.0.1:1",
            clock=lambda: self.elapsed,
        )
        self._monkeypatch.setattr(self.dispatcher._bridge, "request", self.request)
        member = {"name": "n1", "ray_id": "r", "address": "a", "gpus": self.gpus, "alive": True}
        self.dispatcher._on_news({"news": "members", "nodes": [member]})
        self.news(hello=True)

    def request(self, op: str, node: str, **fields: Any) -> Future[Any]:
        self.asked.append((op, fields))
        done: Future[Any] = Future()
        if op == "start" and self.refusal is not None:
            done.set_exception(AgentRefused(self.refusal))
            return done
        if op == "start":
            launch = fields["launch"]
            gpus = list(launch["gpus"])
            self.listed[launch["attempt_id"]] = {"state": "live", "gpus": gpus, "exit": None}
        done.set_result("started")
        return done

    def news(self, *, hello: bool = False) -> None:
        report = {"attempts": dict(self.listed)}
        if hello:
            gpus = [
                {"index": index, "name": "logical GPU", "memory_bytes": None, "uuid": None}
                for index in range(self.gpus)
            ]
            report = {"hello": {**report, "gpus": gpus, "cpus": 2}}
        self.dispatcher._on_news({"news": "node", "name": "n1", **report})

    def waiting(self, name: str = "one", **changes: Any) -> str:
        """Queue a run; return its id."""
        spec = run_spec(self.corpus, name, steps=1000) | changes
        return self.store.runs.create(load_spec(spec)).id

    def running(self, name: str = "one", **changes: Any) -> tuple[str, str]:
        """Start a run; return its id and that of its attempt."""
        return self.begun(self.waiting(name, **changes))

    def begun(self, run_id: str) -> tuple[str, str]:
        """Start a run that waits; return its id and that of its attempt."""
        self.tick()
        attempt = f"{run_id}-1"
        self.heartbeat(attempt, step=None)
        line = '{"kind": "started", "time": 1.0, "schema_version": 1, "attempt": 1}\n'
        self.store.streams.append(attempt, "events.jsonl", 0, line.encode())
        self.tick()
        return run_id, attempt

    def exited(self, attempt: str, **note: Any) -> dict[str, Any]:
        """Report the exit of an attempt, as its shim does."""
        self.listed.pop(attempt, None)
        found = {"code": 0, "signal": None, "reason": "", "log_tail": ""} | note
        sizes = self.store.streams.sizes(attempt)
        return self.dispatcher.on_exit(attempt, {"exit": found, "sizes": sizes, "node_rank": 0})

    def heartbeat(self, attempt: str, step: int | None):
        return self.dispatcher.on_heartbeat(
            attempt, {"step": step, "elapsed_s": self.elapsed, "node_rank": 0}
        )

    def tick(self, seconds: float = 1.0) -> None:
        self.elapsed += seconds
        self.news()
        self.dispatcher.tick()
        # What an agent answered in this tick is recorded by the next.
        while self.dispatcher.tick():
            pass

    def state(self, run_id: str) -> tuple[str, int]:
        run = self.store.runs.get(run_id)
        return run.state, run.attempt
