"""Why attempts end, from the messages that torch, NCCL and the driver really print."""

from __future__ import annotations

import re

import pytest

from lehr.control import retries
from lehr.control.error_patterns import PATTERNS, Budget, last_line, raised
from lehr.control.retries import ExitReport, FinishedReport, classify
from lehr_testing.failures import MESSAGES

BUDGETS = {
    "ecc_error": "infrastructure",
    "gpu_lost": "infrastructure",
    "hang": "infrastructure",
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
    "hang": "infrastructure",
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


def test_stall_that_the_platform_ends_is_a_hang_if_the_trainer_named_one():
    why = "no step for 612 s: stall_limit_s is 600"
    hang = "error: hang at step 7: rank 0 on n1 cannot answer: it runs no Python; rank 1 is in x"
    assert classify(ExitReport(reason="stopped", log_tail=f"{hang}\n{why}"), None).name == "hang"
    assert classify(ExitReport(reason="stopped", log_tail=why), None).name == "stalled"


def test_pause_for_storage_doubles_to_a_quarter_of_an_hour_whatever_the_budget():
    pauses = [retries.pause_s("disk_full", failures) for failures in (0, 1, 2, 5, 10, 5000)]
    assert pauses == [30, 30, 60, 480, 960, 960]
    assert retries.pause_s("nccl_timeout", 3) == 0


HEAD = "Traceback (most recent call last):\n"
BOOM = f'{HEAD}  File "train.py", line 3, in <module>\n    main()\nValueError: boom at step 3\n'
CHAINED = "\nThe above exception was the direct cause of the following exception:\n\n"
OTHER = f'{HEAD}  File "a.py", line 1, in f\nOutOfSamples: 12 left\n'
ROOT = "Root Cause (first observed failure):\n[0]:\n  rank      : 1 (local_rank: 1)\n"
RANKS = "".join(
    f"[rank{rank}]: {line}\n"
    for rank, text in ((1, BOOM), (0, OTHER))
    for line in text.splitlines()
)
RAISED = {
    "traceback": (f"step 2\n{BOOM}", "ValueError: boom at step 3"),
    "chained": (f"{BOOM}{CHAINED}{OTHER}", "OutOfSamples: 12 left"),
    "output after it": (f"{BOOM}[W1129 c10d] not destroyed\nbye\n", "ValueError: boom at step 3"),
    "coloured": (f"{HEAD}  File\n\x1b[31mKeyError\x1b[0m: 'x'\x07\n", "KeyError: 'x'"),
    "message on the next line": (f"{HEAD}  File\nRuntimeError: load:\n\tno key\n", "RuntimeError: load: no key"),
    "cut traceback": ("    loss.backward()\nRuntimeError: no grad\n", "RuntimeError: no grad"),
    "rank that failed first": (f"{RANKS}{HEAD}  File\nx.ChildFailedError: \n===\n{ROOT}", "ValueError: boom at step 3"),
    "launcher alone": (f"{HEAD}  File\nx.CalledProcessError: 1\n", "x.CalledProcessError: 1"),
    "empty line of a rank": (f"[rank0]: {HEAD}[rank0]:\n[rank0]: KeyError: 1\n", "KeyError: 1"),
    "ignored at the exit": (f"{BOOM}Exception ignored in: <f>\n{OTHER}", "ValueError: boom at step 3"),
    "in a thread": (f"{BOOM}Exception in thread T:\n{OTHER}{CHAINED}{OTHER}", "ValueError: boom at step 3"),
    "none": ("step 3\nError rate 0.5\n", None),
    "nothing": ("", None),
}  # fmt: skip
LAST = {
    "argparse": ("usage: t.py\nt.py: error: unrecognized arguments: --lr\n\n", "t.py: error: unrecognized arguments: --lr"),
    "progress bar": ("no data\n 10%|# | 1/9\r 90%|## | 8/9 [00:01<00:00, 3.2it/s]\n", "no data"),
    "warning with its source": ("no data\nx.py:3: UserWarning: old\n  warnings.warn(old)\n", "no data"),
    "hydra": (
        ("Could not override 'lrr'.\nKey 'lrr' is not in struct\n    full_key: lrr\n\n"
        "Set the environment variable HYDRA_FULL_ERROR=1 for a complete stack trace.\n"),
        "Key 'lrr' is not in struct",
    ),
    "ignored at the exit": (f"no data\nException ignored in: <f>\n{BOOM}", "no data"),
    "only in a thread": (f"no data\nException in thread T:\n{BOOM}", "ValueError: boom at step 3"),
    "ruler": ("no data\n=====\n", "no data"),
    "nothing": (" \n\r\n", None),
    "long": ("x" * 5000, "x" * 297 + "..."),
}  # fmt: skip


@pytest.mark.parametrize("case", RAISED)
def test_exception_is_that_of_the_last_traceback_or_of_the_first_rank(case):
    output, line = RAISED[case]
    assert raised(output) == line


@pytest.mark.parametrize("case", LAST)
def test_last_line_is_no_progress_bar_and_no_warning(case):
    output, line = LAST[case]
    assert last_line(output) == line
