"""Nothing new is decided before the moment that ``due_in_s`` names."""

from __future__ import annotations

import pytest

from lehr.control.due import due_in_s, heartbeat_decides
from lehr.control.lifecycle import Desired, RunState
from lehr.control.reconcile import (
    AttemptPhase,
    NodeSeen,
    OpenAttempt,
)
from lehr.control.snapshot import OpenRun, Snapshot

RUN = OpenRun("r1", RunState.RUNNING, Desired.RUN, attempt=1)


def test_healthy_attempt_has_no_limit() -> None:
    attempt = OpenAttempt(
        "r1-1", ("n1",), current=True, dispatched=True, contacted=True, since_contact_s=3.0
    )
    node = NodeSeen("n1", alive=True, answered=True, attempts={"r1-1": AttemptPhase.LIVE})
    assert due_in_s(Snapshot([RUN], [attempt], members=[node])) is None


@pytest.mark.parametrize(
    ("given", "decides"),
    [
        ({}, False),
        ({"time_limit_s": 100.0, "elapsed_s": 101.0}, True),
        ({"time_limit_s": 100.0, "elapsed_s": 101.0, "running": False}, False),
        ({"time_limit_s": 100.0, "elapsed_s": 99.0}, False),
        ({"time_limit_s": 100.0}, False),
        ({"stall_limit_s": 60.0, "since_contact_s": 61.0}, True),
        ({"stall_limit_s": 60.0, "since_contact_s": 2.0}, False),
    ],
)
def test_only_a_heartbeat_that_passes_a_limit_wakes_the_dispatcher(given, decides) -> None:
    ordinary = {
        "running": True,
        "time_limit_s": None,
        "elapsed_s": None,
        "stall_limit_s": None,
        "since_contact_s": 2.0,
    }
    assert heartbeat_decides(**(ordinary | given)) is decides
