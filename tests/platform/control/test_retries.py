"""Why attempts end, from the messages that torch, NCCL and the driver really print."""

from __future__ import annotations

import re

import pytest

from lehr.control import retries
from lehr.control.error_patterns import PATTERNS, Budget
from lehr.control.lifecycle import Desired, RunState
from lehr.control.outcome import outcome, path
from lehr.control.retries import Budgets, ExitReport, FinishedReport, classify
from lehr_testing.failures import MESSAGES
from lehr_testing.lifecycle import is_move

PLENTY = Budgets(user=9, infrastructure=9, preemption=9)
NONE_LEFT = Budgets(user=0, infrastructure=0, preemption=0)

BUDGETS = {
    "ecc_error": "infrastructure",
    "gpu_lost": "infrastructure",
    "stalled": "infrastructure",
    "out_of_memory": "none",
    "shared_memory_full": "none",
    "disk_full": "infrastructure",
    "nccl_timeout": "infrastructure",
    "nccl_error": "infrastructure",
    "network": "infrastructure",
    "download_failed": "infrastructure",
    "device_assert": "user",
    "user_code": "user",
}
"""By hand: what each cause that is read from the output costs."""
BY_THE_SHIM = {
    "shim_lost": "infrastructure",
    "node_rebooted": "infrastructure",
    "node_lost": "infrastructure",
    "peer_lost": "infrastructure",
    "no_contact": "infrastructure",
    "gpu_busy": "infrastructure",
    "checkpoint_unreachable": "infrastructure",
    "code_unreachable": "infrastructure",
    "other_protocol": "none",
    "environment_failed": "none",
    "launch_failed": "infrastructure",
    "secret_removed": "none",
    "terminated": "preemption",
}
BY_THE_TRAINER = {
    "out_of_memory": "none",
    "bad_config": "none",
    "bad_data": "none",
    "bad_checkpoint": "none",
    "missing_checkpoint": "infrastructure",
    "nan_loss": "none",
    "disk_full": "infrastructure",
    "peer_lost": "infrastructure",
    "gpu_error": "infrastructure",
    "data_unreachable": "infrastructure",
    "error": "user",
    "anything else": "user",
}
EACH = [(cause, text) for cause, texts in MESSAGES.items() for text in texts]
EXPRESSIONS = [
    (pattern.cause, expression) for pattern in PATTERNS for expression in pattern.expressions
]


@pytest.mark.parametrize(("cause", "text"), EACH, ids=lambda text: text[:40])
def test_real_error_messages_are_classified(cause, text):
    tail = f"step 100 loss 3.2\n{text}\n"
    found = classify(ExitReport(code=1, log_tail=tail), None)
    assert (found.name, found.budget) == (cause, BUDGETS[cause])
    # The message quotes the line of the output, not only the name of the cause.
    assert any(line.strip()[:60] in found.message for line in text.splitlines())


@pytest.mark.parametrize(("cause", "expression"), EXPRESSIONS, ids=lambda text: text[:40])
def test_every_error_pattern_matches_a_real_message(cause, expression):
    assert any(re.search(expression, text) for text in MESSAGES[cause])


def test_every_cause_has_a_message_and_a_budget():
    assert {pattern.cause for pattern in PATTERNS} == MESSAGES.keys() - {"user_code"}
    assert BUDGETS.keys() == MESSAGES.keys()


def test_hardware_error_takes_precedence_over_the_nccl_error_it_causes():
    tail = (
        "ncclSystemError: System call (e.g. socket, malloc) or external library call failed\n"
        "RuntimeError: CUDA error: uncorrectable ECC error encountered\n"
    )
    assert classify(ExitReport(code=1, log_tail=tail), None).name == "ecc_error"


@pytest.mark.parametrize(("cause", "budget"), BY_THE_TRAINER.items())
def test_each_cause_of_the_trainer_has_its_budget(cause, budget):
    finished = FinishedReport("failed", cause, "it says why", step=3)
    found = classify(ExitReport(code=1), finished)
    assert (found.name, found.budget, found.message) == (cause, budget, "it says why")
    ends = decide(finished=finished)
    assert ends.state is (RunState.FAILED if budget == "none" else RunState.QUEUED)


def test_failure_of_a_program_is_classified_by_its_message_and_quotes_no_log():
    tail = "caught: CUDA out of memory with token hf_hidden\n"
    for message, cause in (
        ("KeyError: 'x'", "program_failed"),
        ("CUDA out of memory", "out_of_memory"),
        ("t.py was killed by SIGABRT; its output: lehr logs r", "out_of_memory"),
    ):
        finished = FinishedReport("failed", "program_failed", message)
        found = classify(ExitReport(code=1, log_tail=tail), finished)
        assert found.name == cause
        assert "hf_hidden" not in found.message


@pytest.mark.parametrize(
    ("signal", "cause", "budget"),
    [
        (9, "killed", Budget.INFRASTRUCTURE),
        (15, "terminated", Budget.PREEMPTION),
        (11, "crashed", Budget.USER),
        (6, "crashed", Budget.USER),
    ],
)
def test_signals_are_classified_from_the_exit_and_from_torchruns_report(signal, cause, budget):
    alone = classify(ExitReport(signal=signal), None)
    assert (alone.name, alone.budget) == (cause, budget)
    report = (
        "lehr_trainer FAILED\nRoot Cause (first observed failure):\n  rank      : 1 (local_rank: 1)\n"
        f"  exitcode  : -{signal} (pid: 4242)\n  traceback : Signal {signal} (SIGX) received by PID 4242\n"
        "torch.distributed.elastic.multiprocessing.errors.ChildFailedError:\n"
    )
    by_torchrun = classify(ExitReport(code=1, log_tail=report), None)
    assert (by_torchrun.name, by_torchrun.budget) == (cause, budget)


@pytest.mark.parametrize(("reason", "budget"), BY_THE_SHIM.items())
def test_each_exit_reason_of_the_shim_has_its_budget(reason, budget):
    found = classify(ExitReport(reason=reason, log_tail="node n2 was lost"), None)
    assert (found.name, found.budget) == (reason, budget)
    assert found.message.endswith(": node n2 was lost")


def test_tables_here_have_each_reason_of_the_shim_and_cause_of_the_trainer():
    assert retries._SHIM_REASONS.keys() == BY_THE_SHIM.keys()
    named = retries._OWN_CAUSES.keys() | retries._OWN_SUSPICIONS
    assert named == BY_THE_TRAINER.keys() - {"error", "anything else"}


# --- what becomes of the run ----------------------------------------------------------------------


def decide(
    *, desired=Desired.RUN, over=False, ended=None, finished=None, budgets=PLENTY, limit=None
):
    return outcome(
        desired=desired,
        time_limit_s=limit,
        over_time_limit=over,
        ended=ended if ended is not None else ExitReport(code=1),
        finished=finished,
        budgets=budgets,
    )


def test_each_kind_of_failure_uses_only_its_own_budget():
    killed = ExitReport(signal=9)
    only_user = Budgets(user=5, infrastructure=0, preemption=5)
    assert decide(ended=killed).state is RunState.QUEUED
    assert decide(ended=killed).spends is Budget.INFRASTRUCTURE
    refused = decide(ended=killed, budgets=only_user)
    assert refused.state is RunState.FAILED
    assert "no retry is left" in refused.message
    code = ExitReport(code=1, log_tail="KeyError: 'x'")
    assert decide(ended=code, budgets=Budgets(0, 5, 5)).state is RunState.FAILED
    assert decide(ended=code, budgets=Budgets(1, 0, 0)).spends is Budget.USER


@pytest.mark.parametrize(
    ("ended", "message"),
    [
        (ExitReport(code=0), None),
        (ExitReport(signal=6), "its process ended with signal 6 after it had finished and saved"),
        (
            ExitReport(code=1, log_tail="  exitcode  : -6 (pid: 42)"),
            "its process ended with exit code 1 (a rank's: -6) after it had finished and saved",
        ),
        (ExitReport(reason="node_lost"), None),
    ],
)
def test_a_crash_after_finishing_is_reported_but_not_charged(ended, message):
    found = decide(ended=ended, finished=FinishedReport("completed", step=10), budgets=NONE_LEFT)
    assert (found.state, found.message, found.spends) == (RunState.COMPLETED, message, Budget.NONE)


@pytest.mark.parametrize(
    ("desired", "state"),
    [
        (Desired.CANCEL, RunState.CANCELLED),
        (Desired.PRUNE, RunState.PRUNED),
        (Desired.PAUSE, RunState.PAUSED),
    ],
)
def test_requested_stop_decides_the_state_however_the_process_ended(desired, state):
    for ended, finished in [
        (ExitReport(code=0), FinishedReport("stopped", step=3)),
        (ExitReport(signal=9, reason="stopped"), None),
        (ExitReport(reason="node_lost"), None),
        (ExitReport(code=1, log_tail="KeyError: 1"), None),
    ]:
        assert (
            decide(desired=desired, ended=ended, finished=finished, budgets=NONE_LEFT).state
            is state
        )


def test_pause_without_a_save_is_reported_and_a_failed_run_fails():
    killed = decide(desired=Desired.PAUSE, ended=ExitReport(signal=9, reason="stopped"))
    assert "last checkpoint" in killed.message
    nan = decide(
        desired=Desired.PAUSE, finished=FinishedReport("failed", "nan_loss", "loss is NaN")
    )
    assert (nan.state, nan.cause) == (RunState.FAILED, "nan_loss")


@pytest.mark.parametrize("command", ["lehr down", "lehr node leave"])
def test_a_stop_by_a_command_on_its_machine_is_named(command):
    stopped = ExitReport(code=0, reason="terminated", log_tail=command)
    saved = decide(finished=FinishedReport("stopped", step=7), ended=stopped)
    assert (saved.state, saved.spends, saved.cause, saved.message) == (
        RunState.QUEUED,
        Budget.PREEMPTION,
        "terminated",
        f"it was stopped by {command}, and saved",
    )
    assert decide(ended=stopped).message == f"it was stopped by {command}"


def test_every_finalization_uses_legal_transitions():
    for old in (RunState.STARTING, RunState.RUNNING, RunState.STOPPING):
        for new in RunState:
            steps = path(old, new)
            state = old
            for step in steps:
                assert is_move(state, step)
                state = step
            if steps:
                assert state is new
    assert path(RunState.STARTING, RunState.COMPLETED) == (RunState.RUNNING, RunState.COMPLETED)
    # A preempted run; a run that is stopped for any other reason is never queued again by itself.
    assert path(RunState.STOPPING, RunState.QUEUED) == (RunState.QUEUED,)
    for desired in (Desired.PAUSE, Desired.CANCEL, Desired.PRUNE):
        for end in ("stopped", "failed", "completed"):
            stopped = decide(desired=desired, finished=FinishedReport(end, "error"))
            assert stopped.state is not RunState.QUEUED


def test_pause_for_storage_doubles_to_a_quarter_of_an_hour_whatever_the_budget():
    pauses = [retries.pause_s("disk_full", failures) for failures in (0, 1, 2, 5, 10, 5000)]
    assert pauses == [30, 30, 60, 480, 960, 960]
    assert retries.pause_s("nccl_timeout", 3) == 0


def test_lost_lock_is_classified_as_a_busy_gpu():
    found = classify(ExitReport(reason="lock_lost"), None)
    assert (found.name, found.budget) == ("gpu_busy", Budget.INFRASTRUCTURE)
