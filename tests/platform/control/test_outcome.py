"""The outcome of a run after its attempt ended: state, cause and message."""

from __future__ import annotations

import pytest

from lehr.control.error_patterns import Budget
from lehr.control.lifecycle import Desired, RunState
from lehr.control.outcome import Outcome, outcome, path
from lehr.control.retries import Budgets, ExitReport, FinishedReport, classify

SAVED = FinishedReport("stopped", step=7)
KILLED = ExitReport(signal=9, reason="stopped")


def decide(
    *, desired=Desired.RUN, limit=None, ended=KILLED, finished=None, tries=(1, 1, 1), **how
) -> Outcome:
    return outcome(
        desired=desired,
        time_limit_s=limit,
        over_time_limit=limit is not None,
        ended=ended,
        finished=finished,
        budgets=Budgets(*tries),
        **how,
    )


@pytest.mark.parametrize(
    ("desired", "state"),
    [
        (Desired.CANCEL, RunState.CANCELLED),
        (Desired.PRUNE, RunState.PRUNED),
        (Desired.PAUSE, RunState.PAUSED),
    ],
)
def test_requested_stop_has_the_request_as_cause_and_no_message(desired, state):
    assert decide(desired=desired, finished=SAVED) == Outcome(state, desired.value)


def test_only_a_pause_mentions_that_nothing_was_saved():
    unsaved = "it ended without a report of a save; it will resume from its last checkpoint"
    assert decide(desired=Desired.PAUSE).message == unsaved
    begins = "it ended without a report of a save; it will begin again: it has no checkpoint"
    assert decide(desired=Desired.PAUSE, resumable=False).message == begins
    program = FinishedReport("stopped", saved=False)
    assert decide(desired=Desired.PAUSE, finished=program).message == unsaved
    assert classify(ExitReport(signal=9), program).message == "it was stopped from outside Lehr"
    assert decide(desired=Desired.CANCEL).message is None
    assert decide(desired=Desired.PRUNE).message is None


@pytest.mark.parametrize(
    ("finished", "message"),
    [
        (SAVED, "stopped at its time limit of 60 s, and saved"),
        (None, "stopped at its time limit of 60 s"),
    ],
)
def test_run_over_its_time_limit_is_not_retried(finished, message):
    found = decide(limit=60.0, finished=finished)
    assert found == Outcome(RunState.FAILED, "time_limit", message)


@pytest.mark.parametrize(
    ("cause", "infrastructure", "state"),
    [("peer_lost", 1, "paused"), ("peer_lost", 0, "failed"), ("exception", 1, "failed")],
)
def test_run_that_fails_while_pausing_is_paused_if_it_could_be_tried_again(
    cause, infrastructure, state
):
    failed = FinishedReport("failed", cause=cause, message="m", step=7)
    found = decide(desired=Desired.PAUSE, finished=failed, tries=(0, infrastructure, 0))
    assert found.state == state
    assert path(RunState.STOPPING, found.state) == (found.state,)
    # Nothing is tried now, so nothing is paid.
    assert found.spends is Budget.NONE
