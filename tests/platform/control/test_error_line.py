"""Which line of the output of a failed program is shown as the reason."""

from __future__ import annotations

import pytest

from lehr.control.error_patterns import last_line, raised

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
