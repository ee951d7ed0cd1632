"""What a machine asks of the server before it joins."""

from __future__ import annotations

from typing import Any

import pytest

from lehr.errors import Conflict, RayStarting
from lehr.joining import machine


class StartingServer:
    """Answers like a server whose Ray is up after some requests."""

    def __init__(self, refusals: int, answer: Exception | None = None) -> None:
        self.refusals = refusals
        self.answer = answer or RayStarting("Ray is still starting.")
        self.asked: list[str] = []

    def join_cluster(self, name: str, *, check: bool) -> str:
        assert not check
        self.asked.append(name)
        if len(self.asked) <= self.refusals:
            raise self.answer
        return f"view of {name}"


def test_server_whose_ray_is_starting_is_asked_again(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(machine, "AGAIN_S", 0.0)
    server: Any = StartingServer(refusals=3)
    view, (asked, answered) = machine.ask(server, "gpu-2")
    assert str(view) == "view of gpu-2"
    assert asked <= answered
    assert server.asked == ["gpu-2"] * 4


def test_server_whose_ray_never_starts_is_an_error_in_the_end(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(machine, "HEAD_S", -1.0)
    server: Any = StartingServer(refusals=10)
    with pytest.raises(RayStarting, match="still starting"):
        machine.ask(server, "gpu-2")
    assert len(server.asked) == 1


def test_server_that_other_machines_cannot_join_is_asked_once() -> None:
    """A minute of waiting would not change the answer of a server on a loopback address."""
    server: Any = StartingServer(refusals=10, answer=Conflict("other machines cannot join"))
    with pytest.raises(Conflict, match="other machines cannot join"):
        machine.ask(server, "gpu-2")
    assert len(server.asked) == 1
