"""The table of transitions matches the one written by hand."""

from __future__ import annotations

import itertools

import pytest

from lehr.control import lifecycle
from lehr.control.lifecycle import RunState, can_transition
from lehr.control.outcome import path
from lehr_testing.lifecycle import ACTIVE, ENDED, MOVES, STATES, is_move


def test_run_has_exactly_these_states():
    assert {state.value for state in RunState} == set(STATES)


@pytest.mark.parametrize("old", STATES)
def test_each_state_has_exactly_these_transitions(old):
    assert {new for new in STATES if can_transition(RunState(old), RunState(new))} == MOVES[old]
    assert {state.value for state in lifecycle.TRANSITIONS[RunState(old)]} == MOVES[old]


def test_ended_and_active_states():
    assert {state.value for state in RunState if state.ended} == ENDED
    assert {state.value for state in RunState if state.active} == ACTIVE


def test_completed_cancelled_and_pruned_have_no_transitions():
    assert {state for state in STATES if not MOVES[state]} == ENDED - {"failed"}


@pytest.mark.parametrize("old", sorted(ACTIVE))
def test_each_path_consists_of_legal_transitions(old):
    reached = set()
    for new in STATES:
        way = [old, *(state.value for state in path(RunState(old), RunState(new)))]
        if len(way) > 1:
            assert way[-1] == new
            assert all(is_move(*pair) for pair in itertools.pairwise(way))
            reached.add(new)
    # Whatever an attempt's end leads to can be recorded.
    assert reached >= ENDED | {"paused"}
