"""Nothing new is decided before the moment that ``due_in_s`` names."""

from __future__ import annotations

from dataclasses import replace

import pytest

from lehr.control.due import due_in_s, heartbeat_decides
from lehr.control.lifecycle import Desired, RunState
from lehr.control.reconcile import (
    START_TRIES,
    AttemptPhase,
    Launch,
    MarkLost,
    NodeSeen,
    OpenAttempt,
    Starts,
    pause_left_s,
    start_failure,
)
from lehr.control.snapshot import OpenRun, Snapshot
from lehr.control.step import settled, step
from lehr.errors import LehrError, NotFound

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


STARTING = OpenRun("r", RunState.STARTING, Desired.RUN, attempt=1)
ATTEMPT = OpenAttempt("r-1", ("n1",), current=True)
LAST = Starts(START_TRIES, "no space left", "n1", since_failed_s=30.1)


def actions(starts: Starts, *, answered: bool = True, **changes: object) -> list[object]:
    """Return what a tick does about an attempt whose starts went like this."""
    node = NodeSeen("n1", alive=True, answered=answered)
    attempt = replace(ATTEMPT, starts=starts, **changes)
    snapshot = Snapshot([STARTING], [attempt], members=[node])
    return [one for one in step(snapshot) if not settled(one)]


def test_pauses_double_up_to_half_a_minute():
    pauses = [pause_left_s(Starts(tries, since_failed_s=0.0)) for tries in range(1, 7)]
    assert pauses == [2.0, 4.0, 8.0, 16.0, 30.0, 30.0]
    # The bridge was down: no agent has rejected anything.
    assert pause_left_s(Starts(since_failed_s=0.0)) == 1.0
    assert pause_left_s(Starts()) == 0.0


def test_next_call_comes_after_the_pause_which_is_seen_in_advance():
    early = Starts(2, "full", "n1", since_failed_s=1.5)
    assert actions(early) == []
    node = NodeSeen("n1", alive=True, answered=True)
    waiting = Snapshot([STARTING], [replace(ATTEMPT, starts=early)], members=[node])
    assert due_in_s(waiting) == pytest.approx(2.5, abs=0.01)
    assert actions(replace(early, since_failed_s=4.1)) == [Launch("r-1")]


def test_attempt_is_given_up_when_its_node_has_rejected_every_try():
    message = "its node did not start it in 5 tries: no space left"
    assert actions(LAST) == [MarkLost("r-1", "launch_failed", message, "n1")]
    assert actions(replace(LAST, rejected=START_TRIES - 1)) == [Launch("r-1")]
    # While its agent does not answer, it may have been started after all.
    assert actions(LAST, answered=False) == []
    assert actions(LAST, in_flight=True) == []


def test_node_without_space_for_an_attempt_has_a_full_disk():
    full = Starts(START_TRIES, "[Errno 28] No space left on device", "n1", since_failed_s=30.1)
    failure = start_failure(full)
    assert failure is not None
    assert failure[0] == "disk_full"


def test_attempt_that_was_started_after_all_is_not_given_up():
    node = NodeSeen("n1", alive=True, answered=True, attempts={"r-1": AttemptPhase.LIVE})
    found = step(Snapshot([STARTING], [replace(ATTEMPT, starts=LAST)], members=[node]))
    assert not any(isinstance(one, MarkLost) for one in found)


@pytest.mark.parametrize(
    ("error", "cause", "message"),
    [
        (NotFound("there is no secret 'hf'."), "secret_removed", "there is no secret 'hf'."),
        (LehrError("its code is gone"), "launch_failed", "its code is gone"),
        (ValueError("no such loss"), "launch_failed", "no such loss"),
    ],
)
def test_attempt_without_a_launch_spec_ends_at_once(error, cause, message):
    starts = Starts(impossible=error)
    failure = start_failure(starts)
    assert failure is not None
    assert failure == (cause, message, None)
    assert actions(starts) == [MarkLost("r-1", cause, message)]
