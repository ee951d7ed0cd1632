"""Nothing new is decided before the moment that ``due_in_s`` names."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lehr.control.due import due_in_s, heartbeat_decides
from lehr.control.lifecycle import Desired, RunState
from lehr.control.reconcile import (
    AttemptPhase,
    NodeSeen,
    OpenAttempt,
    Timeouts,
)
from lehr.control.snapshot import OpenRun, Snapshot
from lehr.control.step import step

LIMITS = Timeouts(abandon_s=2000.0)
RUN = OpenRun("r1", RunState.RUNNING, Desired.RUN, attempt=1)


def passed(attempt: OpenAttempt, seconds: float) -> OpenAttempt:
    """Return the attempt after so many seconds in which nothing happened."""
    step = attempt.since_step_s
    return replace(
        attempt,
        since_contact_s=attempt.since_contact_s + seconds,
        silent_nodes={name: silent + seconds for name, silent in attempt.silent_nodes.items()},
        since_request_s=attempt.since_request_s + seconds,
        since_ended_s=attempt.since_ended_s + seconds,
        elapsed_s=None if attempt.elapsed_s is None else attempt.elapsed_s + seconds,
        since_step_s=None if step is None else step + seconds,
    )


def after(snapshot: Snapshot, seconds: float) -> Snapshot:
    return replace(
        snapshot,
        attempts=[passed(one, seconds) for one in snapshot.attempts],
        ended=[replace(one, since_exit_s=one.since_exit_s + seconds) for one in snapshot.ended],
    )


def decided(snapshot: Snapshot) -> list[tuple[object, ...]]:
    """Return the decisions without their texts, which may name seconds."""
    return [
        (type(one), getattr(one, "attempt_id", ""), getattr(one, "stop_level", ""))
        for one in step(snapshot)
    ]


durations = st.floats(0, 3000, allow_nan=False).map(lambda seconds: round(seconds, 1))
names = ("n1", "n2")


@st.composite
def snapshots(draw: st.DrawFn) -> Snapshot:
    nodes = names[: draw(st.integers(1, 2))]
    phase = st.sampled_from([None, AttemptPhase.LIVE, AttemptPhase.ENDED])

    def listed() -> Mapping[str, AttemptPhase]:
        found = draw(phase)
        return {} if found is None else {"r1-1": found}

    members = [
        NodeSeen(name, alive=draw(st.booleans()), answered=draw(st.booleans()), attempts=listed())
        for name in nodes
    ]
    attempt = OpenAttempt(
        "r1-1",
        nodes,
        current=draw(st.booleans()),
        desired=draw(st.sampled_from(Desired)),
        over_time_limit=draw(st.booleans()),
        stall_limit_s=draw(st.none() | durations),
        since_step_s=draw(st.none() | durations),
        dispatched=draw(st.booleans()),
        in_flight=draw(st.booleans()),
        exited=draw(st.booleans()),
        ended_nodes=frozenset(draw(st.sets(st.sampled_from(nodes)))),
        ended_well=draw(st.booleans()),
        since_contact_s=draw(durations),
        silent_nodes=draw(st.just({}) | st.fixed_dictionaries(dict.fromkeys(nodes, durations))),
        contacted=draw(st.booleans()),
        since_request_s=draw(durations),
        stop_grace_s=draw(st.none() | durations),
        since_ended_s=draw(durations),
        elapsed_s=draw(st.none() | durations),
    )
    listed_as_ended = any(AttemptPhase.ENDED in one.attempts.values() for one in members)
    if attempt.exited or attempt.ended_nodes or listed_as_ended:
        attempt = replace(attempt, ended=True)
    else:
        attempt = replace(attempt, since_ended_s=0.0)
    run = replace(RUN, time_limit_s=draw(st.none() | durations))
    known = draw(st.booleans())
    return Snapshot([run], [attempt], members=members, membership_known=known, timeouts=LIMITS)


@given(snapshots(), st.floats(0, 1, exclude_max=True))
def test_nothing_new_is_decided_before_it_is_due(snapshot: Snapshot, part: float) -> None:
    due = due_in_s(snapshot)
    seconds = part * (5000.0 if due is None else due)
    if due is not None and due - seconds <= 0.11:
        return  # The alarm rounds up by as much.
    now = decided(snapshot)
    # A clock that stands still while nothing has ended does not run in the comparison either.
    later = after(snapshot, seconds)
    if snapshot.attempts and next(iter(snapshot.attempts)).since_ended_s == 0.0:
        later = replace(later, attempts=[replace(one, since_ended_s=0.0) for one in later.attempts])
    assert decided(later) == now


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
