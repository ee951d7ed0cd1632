"""What becomes of a run after its attempt has ended: state, cause, message, who pays."""

from __future__ import annotations

import itertools

import pytest

from lehr.control.error_patterns import Budget
from lehr.control.finalize import Outcome, outcome, path
from lehr.control.lifecycle import (
    NODE_UNTIL,
    PREEMPTED,
    REWIND,
    TIME_LIMIT,
    Desired,
    RunState,
    Situation,
)
from lehr.control.retries import Budgets, ExitReport, FinishedReport, classify
from lehr_testing.lifecycle import ACTIVE, ENDED, MOVES, STATES, is_move
from lehr_testing.runs import exit_of

SAVED = FinishedReport("stopped", step=7)
UNSAVED = FinishedReport("stopped", step=7, saved=False)
COMPLETED = FinishedReport("completed", step=9)
NAN = FinishedReport("failed", "nan_loss", "loss is NaN", step=7)
KILLED = ExitReport(signal=9, reason="stopped")
CODE = ExitReport(code=1, log_tail="KeyError: 1")
REQUESTS = {
    Desired.CANCEL: RunState.CANCELLED,
    Desired.PRUNE: RunState.PRUNED,
    Desired.PAUSE: RunState.PAUSED,
}
NOTHING_SAVED = "ended without a report of a save; it will"


def decide(
    *, desired=Desired.RUN, cause=None, ended=KILLED, finished=None, tries=(1, 1, 1), **changes
) -> Outcome:
    """``cause``: why Lehr stopped it; None: it ended by itself, or by a request."""
    stops = cause is not None or desired is not Desired.RUN
    state = RunState.STOPPING if stops else RunState.RUNNING
    return outcome(
        exit_of(
            situation=Situation(state, desired, cause),
            report=ended,
            finished=finished,
            budgets=Budgets(*tries),
            **changes,
        )
    )


@pytest.mark.parametrize(("desired", "state"), REQUESTS.items())
@pytest.mark.parametrize(
    ("ended", "finished"),
    [
        (ExitReport(code=0), SAVED),
        (KILLED, None),
        (ExitReport(reason="node_lost"), None),
        (CODE, None),
    ],
)
def test_requested_stop_decides_the_state_however_the_process_ended(
    desired, state, ended, finished
):
    decided = decide(desired=desired, ended=ended, finished=finished, tries=(0, 0, 0), message="m")
    assert (decided.state, decided.cause, decided.spends) == (state, desired.value, Budget.NONE)
    if desired is not Desired.PAUSE:
        assert decided.message == "m"
    elif finished is SAVED:
        assert decided.message is None


def test_pause_mentions_that_nothing_was_saved():
    unsaved = f"it {NOTHING_SAVED} resume from its last checkpoint"
    assert decide(desired=Desired.PAUSE).message == unsaved
    assert decide(desired=Desired.PAUSE, finished=UNSAVED).message == unsaved
    begins = f"it {NOTHING_SAVED} begin again: it has no checkpoint"
    assert decide(desired=Desired.PAUSE, resumable=False).message == begins
    assert classify(ExitReport(signal=9), UNSAVED).message == "it was stopped from outside Lehr"


@pytest.mark.parametrize(
    ("cause", "infrastructure", "state"),
    [("peer_lost", 1, "paused"), ("peer_lost", 0, "failed"), ("nan_loss", 1, "failed")],
)
def test_run_that_fails_while_pausing_is_paused_if_it_could_be_tried_again(
    cause, infrastructure, state
):
    failed = FinishedReport("failed", cause=cause, message="m", step=7)
    decided = decide(desired=Desired.PAUSE, finished=failed, tries=(0, infrastructure, 0))
    # Nothing is tried now, so nothing is paid.
    assert (decided.state, decided.spends) == (state, Budget.NONE)


@pytest.mark.parametrize(("finished", "saved"), [(SAVED, ", and saved"), (None, "")])
def test_run_over_its_time_limit_is_not_retried(finished, saved):
    decided = decide(cause=TIME_LIMIT, finished=finished, time_limit_s=60.0)
    message = f"stopped at its time limit of 60 s{saved}"
    assert decided == Outcome(RunState.FAILED, "time_limit", message)


def test_each_kind_of_failure_uses_only_its_own_budget():
    lost = ExitReport(signal=9)
    assert decide(ended=lost).spends is Budget.INFRASTRUCTURE
    refused = decide(ended=lost, tries=(5, 0, 5))
    assert refused.state is RunState.FAILED
    assert "no retry is left" in refused.message
    assert decide(ended=CODE, tries=(0, 5, 5)).state is RunState.FAILED
    assert decide(ended=CODE, tries=(1, 0, 0)).spends is Budget.USER


ROUGH = "after it had finished and saved"


@pytest.mark.parametrize(
    ("ended", "message"),
    [
        (ExitReport(code=0), None),
        (ExitReport(signal=6), f"its process ended with signal 6 {ROUGH}"),
        (
            ExitReport(code=1, log_tail="  exitcode  : -6 (pid: 42)"),
            f"its process ended with exit code 1 (a rank's: -6) {ROUGH}",
        ),
        (ExitReport(reason="node_lost"), None),
    ],
)
def test_a_crash_after_finishing_is_reported_but_not_charged(ended, message):
    decided = decide(ended=ended, finished=COMPLETED, tries=(0, 0, 0))
    assert decided == Outcome(RunState.COMPLETED, "completed", message)


@pytest.mark.parametrize("command", ["lehr down", "lehr node leave"])
def test_a_stop_by_a_command_on_its_machine_is_named(command):
    stopped = ExitReport(code=0, reason="terminated", log_tail=command)
    message = f"it was stopped by {command}, and saved"
    assert decide(finished=SAVED, ended=stopped) == Outcome(
        RunState.QUEUED, "terminated", message, Budget.PREEMPTION
    )
    assert decide(ended=stopped).message == f"it was stopped by {command}"


@pytest.mark.parametrize(
    ("cause", "finished", "how", "state", "spends"),
    [
        (PREEMPTED, SAVED, {}, RunState.QUEUED, Budget.PREEMPTION),
        (PREEMPTED, None, {}, RunState.QUEUED, Budget.PREEMPTION),
        (PREEMPTED, COMPLETED, {}, RunState.COMPLETED, Budget.NONE),
        (PREEMPTED, NAN, {}, RunState.FAILED, Budget.NONE),
        (REWIND, UNSAVED, {}, RunState.QUEUED, Budget.NONE),
        (REWIND, NAN, {}, RunState.QUEUED, Budget.NONE),
        (REWIND, COMPLETED, {}, RunState.COMPLETED, Budget.NONE),
        # Who got further at the end of its node pays nothing.
        (NODE_UNTIL, SAVED, {}, RunState.QUEUED, Budget.NONE),
        (NODE_UNTIL, UNSAVED, {"progressed": True}, RunState.QUEUED, Budget.NONE),
        (NODE_UNTIL, None, {"progressed": True}, RunState.QUEUED, Budget.NONE),
        (NODE_UNTIL, COMPLETED, {}, RunState.COMPLETED, Budget.NONE),
        (NODE_UNTIL, NAN, {}, RunState.FAILED, Budget.NONE),
        (NODE_UNTIL, None, {"tries": (0, 0, 1)}, RunState.QUEUED, Budget.PREEMPTION),
        (NODE_UNTIL, UNSAVED, {"tries": (0, 0, 1)}, RunState.QUEUED, Budget.PREEMPTION),
        (NODE_UNTIL, None, {}, RunState.FAILED, Budget.NONE),
    ],
)
def test_run_that_gives_way_is_queued_again_unless_it_ended_by_itself(
    cause, finished, how, state, spends
):
    decided = decide(cause=cause, finished=finished, **{"tries": (0, 0, 0), **how})
    assert (decided.state, decided.spends) == (state, spends)
    if finished not in {COMPLETED, NAN}:
        assert decided.cause == cause
    if cause == NODE_UNTIL and spends is Budget.PREEMPTION:
        assert NOTHING_SAVED in decided.message
    if cause == NODE_UNTIL and finished is None and state is RunState.FAILED:
        assert decided.message == (
            "it was stopped at the end of its node without a report of a save; no retry is left "
            "for this kind of failure (preemption)"
        )


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
    assert reached >= ENDED | {"paused"} & set(MOVES)
