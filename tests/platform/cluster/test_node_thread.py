"""``NodeThread``: how often it reads the list of a node's agent."""

from __future__ import annotations

import io
import json
import queue
from types import SimpleNamespace
from typing import Any

import pytest

from lehr.cluster import bridge
from lehr.cluster.membership import RayNode
from lehr_testing.full_log import full_log

MEMBER = RayNode(name="n1", ray_id="r", address="127.0.0.1", gpus=1, alive=True)


class Requests:
    """A queue that stays empty, and whose waits move the clock."""

    def __init__(self, waits: int) -> None:
        self.now = 0.0
        self.left = waits

    def get(self, timeout: float) -> Any:
        self.now += timeout
        self.left -= 1
        if self.left < 0:
            return None
        raise queue.Empty


@pytest.mark.parametrize(("nodes", "pause_s"), [(1, 2.0), (300, 2.0), (900, 6.0), (10_000, 10.0)])
def test_agents_of_many_nodes_are_read_more_rarely(monkeypatch, nodes, pause_s):
    requests = Requests(waits=5)
    monkeypatch.setattr(bridge, "time", SimpleNamespace(monotonic=lambda: requests.now))
    file = io.StringIO()
    thread = bridge.NodeThread(
        MEMBER, "session", "http://127.0.0.1:1", "/runs", bridge.Output(file), range(nodes)
    )
    thread.requests = requests  # type: ignore[assignment]
    thread.agent = object()
    monkeypatch.setattr(thread, "call", lambda *_: {"attempts": []})
    thread.run()
    assert len([json.loads(line) for line in file.getvalue().splitlines()]) == 5
    assert requests.now == 5 * pause_s  # The first look is at once.


def test_agents_of_new_nodes_are_made_of_one_class(monkeypatch):
    """Ray keeps each class of actors that is made, so the bridge would grow with each new node."""
    made: list[Any] = []

    def remote(_: type) -> Any:
        made.append(SimpleNamespace(options=lambda **_: made[-1], remote=lambda *_: object()))
        return made[-1]

    def unknown(*_: Any, **__: Any) -> Any:
        raise ValueError

    bridge.remote_agent.cache_clear()
    monkeypatch.setattr(bridge.ray, "remote", remote)
    monkeypatch.setattr(bridge.ray, "get_actor", unknown)
    for name in ("a", "b"):
        member = RayNode(name="n1", ray_id=name * 56, address="127.0.0.1", gpus=1, alive=True)
        output = bridge.Output(io.StringIO())
        thread = bridge.NodeThread(member, "session", "http://127.0.0.1:1", "/runs", output, [1])
        monkeypatch.setattr(thread, "call", lambda *_, **__: {"facts": {"time": 0.0}})
        thread.connect()
    bridge.remote_agent.cache_clear()
    assert len(made) == 1


def test_full_disk_of_the_log_does_not_end_the_thread(monkeypatch):
    requests = Requests(waits=3)
    clock = SimpleNamespace(monotonic=lambda: requests.now, sleep=lambda _: None)
    monkeypatch.setattr(bridge, "time", clock)
    file = io.StringIO()
    thread = bridge.NodeThread(
        MEMBER, "session", "http://127.0.0.1:1", "/runs", bridge.Output(file), [1]
    )
    thread.requests = requests  # type: ignore[assignment]
    thread.agent = object()
    answers = iter([RuntimeError("the agent does not answer"), {"attempts": {}}])

    def call(*_):
        answer = next(answers)
        if isinstance(answer, Exception):
            raise answer
        return answer

    def connect():
        thread.agent = object()

    monkeypatch.setattr(thread, "call", call)
    monkeypatch.setattr(thread, "connect", connect)
    with full_log():
        thread.serve()
    news = [json.loads(line) for line in file.getvalue().splitlines()]
    assert [sorted(entry) for entry in news] == [
        ["error", "name", "news"],
        ["attempts", "name", "news"],
    ]


def test_unexpected_error_of_a_thread_ends_the_bridge_even_on_a_full_disk(monkeypatch):
    codes = []
    monkeypatch.setattr(bridge.os, "_exit", codes.append)
    thread = bridge.NodeThread(
        MEMBER, "session", "http://127.0.0.1:1", "/runs", bridge.Output(io.StringIO()), [1]
    )
    monkeypatch.setattr(thread, "answer", lambda _: {}["op"])
    thread.requests.put({"op": "start"})
    with full_log():
        thread.run()
    assert codes == [1]
