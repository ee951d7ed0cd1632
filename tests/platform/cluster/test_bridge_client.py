"""The server's side of the bridge, with a small program in place of the real bridge."""

from __future__ import annotations

import os
import queue
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from lehr.cluster import bridge_client
from lehr.cluster.bridge_client import BridgeClient, BridgeDown, BridgeProcess
from lehr_testing.waiting import until

CHILD = """
import json, os, sys
def say(**message):
    print(json.dumps(message), flush=True)
say(news="up")
say(news="members", pid=os.getpid())
pings = 0
for line in sys.stdin:
    request = json.loads(line)
    if request["op"] == "ping":
        pings += 1
        if pings == 40:  # Two seconds, twice the limit.
            say(news="members", pid=os.getpid())
        if os.environ.get("DEAF") != "1":
            say(news="pong")
    else:
        say(id=request["id"], ok=True, result=request["node"])
"""
SOON_S = 30.0


class Client:
    def __init__(self, tmp_path: Path, *, ray_address: str | None = "nowhere") -> None:
        self.states: queue.Queue[tuple[str, str | None]] = queue.Queue()
        self.pids: queue.Queue[int] = queue.Queue()
        self.client = BridgeClient(
            tmp_path,
            ray_address=ray_address,
            gpus=0,
            node="n1",
            runs_dir=tmp_path / "runs",
            server_url="http://server",
            on_news=self._on_news,
            on_state=lambda state, why: self.states.put((state, why)),
        )
        self.client.start()

    def _on_news(self, news: dict[str, Any]) -> None:
        self.pids.put(news["pid"])

    def until(self, wanted: str) -> str | None:
        """Return the message of the next such state."""
        while True:
            state, why = self.states.get(timeout=SOON_S)
            if state == wanted:
                return why


@pytest.fixture
def client(tmp_path, monkeypatch):
    monkeypatch.setattr(bridge_client, "COMMAND", (sys.executable, "-c", CHILD))
    monkeypatch.setattr(bridge_client, "PING_EVERY_S", 0.05)
    monkeypatch.setattr(bridge_client, "HANGS_S", 1.0)
    made = Client(tmp_path)
    yield made
    made.client.stop()


def test_frozen_bridge_is_killed_and_replaced(client):
    first = client.pids.get(timeout=SOON_S)
    assert client.until("starting") is None
    assert client.client.request("stop", "n7").result(timeout=SOON_S) == "n7"
    os.kill(first, signal.SIGSTOP)
    asked = client.client.request("stop", "n8")
    with pytest.raises(BridgeDown):
        asked.result(timeout=SOON_S)
    why = client.until("down")
    assert "did not answer" in why
    assert client.until("starting") == f"the last try failed: {why}"
    second = client.pids.get(timeout=SOON_S)
    assert second != first
    assert client.client.request("stop", "n9").result(timeout=SOON_S) == "n9"
    with pytest.raises(ProcessLookupError):
        os.kill(first, 0)


def test_request_does_not_wait_for_a_bridge_that_reads_nothing(client):
    """More than a pipe holds is sent to a frozen bridge; the dispatcher's thread must go on."""
    os.kill(client.pids.get(timeout=SOON_S), signal.SIGSTOP)
    asked = [client.client.request("start", "n1", launch={"x": "y" * 100_000}) for _ in range(5)]
    for future in asked:
        with pytest.raises(BridgeDown):
            future.result(timeout=SOON_S)


def test_bridge_that_reads_but_does_not_answer_pings_is_replaced(tmp_path, monkeypatch):
    monkeypatch.setenv("DEAF", "1")
    monkeypatch.setattr(bridge_client, "COMMAND", (sys.executable, "-c", CHILD))
    monkeypatch.setattr(bridge_client, "PING_EVERY_S", 0.05)
    monkeypatch.setattr(bridge_client, "HANGS_S", 1.0)
    client = Client(tmp_path)
    try:
        assert client.pids.get(timeout=SOON_S) != client.pids.get(timeout=SOON_S)
    finally:
        client.client.stop()


def test_server_that_was_frozen_gives_the_bridge_time_to_answer(tmp_path, monkeypatch):
    """The clock jumps by 100 s, as after SIGSTOP of the server: no ping was sent meanwhile."""
    ahead = 0.0
    clock = SimpleNamespace(monotonic=lambda: time.monotonic() + ahead)
    monkeypatch.setattr(bridge_client, "time", clock)
    monkeypatch.setattr(bridge_client, "COMMAND", (sys.executable, "-c", CHILD))
    monkeypatch.setattr(bridge_client, "PING_EVERY_S", 0.05)
    monkeypatch.setattr(bridge_client, "HANGS_S", 1.0)
    client = Client(tmp_path)
    try:
        first = client.pids.get(timeout=SOON_S)
        for _ in range(10):
            client.client.request("stop", "n7").result(timeout=SOON_S)
            ahead += 100.0
        assert client.pids.get(timeout=SOON_S) == first
    finally:
        client.client.stop()


def test_stop_while_ray_starts_ends_the_bridge_that_comes_after(tmp_path, monkeypatch):
    monkeypatch.setattr(bridge_client, "COMMAND", (sys.executable, "-c", CHILD))
    starting, may_go_on = threading.Event(), threading.Event()

    def ensure(*_: object, **__: object) -> SimpleNamespace:
        starting.set()
        assert may_go_on.wait(SOON_S)
        return SimpleNamespace(address="nowhere", running=lambda: True)

    monkeypatch.setattr(bridge_client.ray_head, "ensure", ensure)
    monkeypatch.setattr(bridge_client.ray_head, "driver_environment", lambda _: {})
    started: list[subprocess.Popen[str]] = []

    def note(process: subprocess.Popen[str]) -> BridgeProcess:
        started.append(process)
        return BridgeProcess(process)

    monkeypatch.setattr(bridge_client, "BridgeProcess", note)
    made = Client(tmp_path, ray_address=None)
    assert starting.wait(SOON_S)
    stopping = threading.Thread(target=made.client.stop)
    stopping.start()
    until(made.client._stopping.is_set, within_s=SOON_S, what="the stop")
    may_go_on.set()
    until(lambda: started, within_s=SOON_S, what="the bridge")
    until(lambda: started[0].poll() is not None, within_s=30, what="the end of the bridge")
    stopping.join()
