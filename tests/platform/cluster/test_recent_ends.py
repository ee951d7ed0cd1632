"""The ends of attempts from which failing nodes are found."""

from __future__ import annotations

import pytest

from lehr.cluster import exits
from lehr.cluster.exits import RecentEnds
from lehr.cluster.isolation import Isolation
from lehr.control.lifecycle import RunState
from lehr.control.nodes import failing
from lehr_testing.stores import begin, run_spec


@pytest.fixture
def ends(store):
    return RecentEnds(store, Isolation(lambda subject, reason: None))


@pytest.fixture
def end(store, ends):
    """Let an attempt end on a node."""
    runs = {}

    def end(node: str, reason: str = "", code: int | None = 0) -> None:
        if node not in runs:
            runs[node] = store.runs.create(run_spec(f"on-{node}")).id
        attempt = begin(store, runs[node], placement=[{"node": node, "gpus": [0]}])
        exited = {"reason": reason, "code": code}
        store.attempts.update(attempt.id, exit=exited, exited_at=store.clock())
        store.transitions.apply(
            runs[node],
            old=RunState.STARTING,
            new=RunState.QUEUED,
            attempt=attempt.number,
            cause="again",
            actor="dispatcher",
        )
        ends.noted.add([attempt.id])

    return end


def excluded(found):
    return [one.node for one in failing(found, {}, {"bad", "good"})]


def test_node_is_found_however_many_attempts_end_on_others(ends, end, monkeypatch):
    monkeypatch.setattr(exits, "AT_START", 2)
    end("bad", "gpu_busy", None)
    assert excluded(ends.take()) == []
    for _ in range(3):
        end("good")
    ends.take()
    end("bad", "gpu_busy", None)
    assert excluded(ends.take()) == ["bad"]
