"""The table of transitions matches the one written by hand."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lehr.control import lifecycle
from lehr.control.lifecycle import Desired, RunState, Situation, can_transition, orders
from lehr.control.preemption import may_be_preempted
from lehr_testing.lifecycle import ACTIVE, ENDED, MOVES, STATES


def test_run_has_exactly_these_states():
    assert {state.value for state in RunState} == set(STATES)


@pytest.mark.parametrize("old", STATES)
def test_each_state_has_exactly_these_transitions(old):
    assert {new for new in STATES if can_transition(RunState(old), RunState(new))} == MOVES[old]
    assert {state.value for state in lifecycle.TRANSITIONS[RunState(old)]} == MOVES[old]


def test_ended_and_active_states():
    assert {state.value for state in RunState if state.ended} == ENDED
    assert {state.value for state in RunState if state.active} == ACTIVE


RUNNING, STOPPING = RunState.RUNNING, RunState.STOPPING
RUN, PAUSE, CANCEL, PRUNE = Desired.RUN, Desired.PAUSE, Desired.CANCEL, Desired.PRUNE


@pytest.mark.parametrize(
    ("situation", "desired", "reason"),
    [
        (Situation(RUNNING, RUN, "started"), "run", ""),
        (Situation(RunState.STARTING, RUN, "placed"), "run", ""),
        (Situation(RUNNING, PAUSE, "started"), "pause", "pause"),
        (Situation(RUNNING, CANCEL, "started"), "stop", "cancel"),
        (Situation(STOPPING, PRUNE, "prune"), "stop", "prune"),
        # Resumed while it stops: it saves, and is queued again.
        (Situation(STOPPING, RUN, "pause"), "pause", "pause"),
        (Situation(STOPPING, RUN, "preempted"), "pause", "pause"),
        (Situation(STOPPING, RUN, "time_limit"), "pause", "time_limit"),
        (Situation(STOPPING, RUN, "rewind"), "stop", "rewind"),
        (Situation(STOPPING, PAUSE, "rewind"), "pause", "pause"),
        # Cancelled while it saves because of its limit: the process may still save.
        (Situation(STOPPING, CANCEL, "time_limit"), "pause", "time_limit"),
        (Situation(RunState.QUEUED, RUN, "retry"), "stop", "run"),
        (Situation(RunState.EXTERNAL, RUN), "run", ""),
    ],
)
def test_orders_follow_from_the_situation_of_the_run(situation, desired, reason):
    found = orders(situation, 3, fenced=False)
    assert (found.desired, found.reason, found.checkpoint_seq) == (desired, reason, 3)


def test_orders_name_the_checkpoints_that_forks_wait_for():
    assert orders(Situation(RUNNING, RUN), 0, fenced=False, keep={"b", "a"}).keep == ("a", "b")


anywhere = st.builds(
    Situation,
    st.sampled_from(RunState),
    st.sampled_from(Desired),
    st.sampled_from([None, "pause", "preempted", "node_until", "rewind", "time_limit"]),
)


@given(anywhere)
def test_fenced_attempt_is_always_stopped(situation):
    found = orders(situation, 0, fenced=True)
    assert (found.desired, found.reason) == ("stop", "fenced")


@given(anywhere)
def test_a_stop_has_one_cause_and_a_run_that_stops_never_trains_on(situation):
    whys = [situation.over_time_limit, situation.preempted, situation.node_ends]
    whys.append(situation.rewinds)
    assert sum(whys) <= 1
    if any(whys):
        assert situation.state is STOPPING
    if situation.state is STOPPING:
        assert orders(situation, 0, fenced=False).desired != "run"
    # Whoever asked for something since then decides, not the cause of the stop.
    if situation.desired is not RUN:
        assert situation.wanted is situation.desired
        assert not situation.preempted
        assert not situation.node_ends


@pytest.mark.parametrize(
    ("situation", "preemptible", "used", "may"),
    [
        (Situation(RUNNING, RUN), True, 1, True),
        (Situation(RUNNING, RUN), True, 2, False),
        (Situation(RUNNING, RUN), False, 0, False),
        (Situation(RUNNING, PAUSE), True, 0, False),
        (Situation(RunState.STARTING, RUN), True, 0, False),
        (Situation(STOPPING, RUN, "preempted"), True, 0, False),
    ],
)
def test_only_a_run_that_trains_and_has_a_retry_left_is_preempted(
    situation, preemptible, used, may
):
    assert may_be_preempted(situation, preemptible=preemptible, used=used, allowed=2) is may
