"""Scripts with Lightning: with Lehr's callback, and with a logger of Lightning and nothing of Lehr."""

from __future__ import annotations

import os
import signal
from pathlib import Path

import pytest

from lehr.node import procfs
from lehr_testing.program_attempts import Attempts
from lehr_testing.waiting import until

PROGRAMS = Path(__file__).parents[2] / "lehr_testing/programs"


@pytest.fixture
def attempts(tmp_path: Path) -> Attempts:
    pytest.importorskip("lightning")  # Of the dev extra.
    return Attempts(tmp_path)


@pytest.mark.nightly  # test_supervisor.py has the same course, with transformers.
def test_lightning_module_is_recorded_and_resumes(attempts):
    attempts.write((PROGRAMS / "pl.py").read_text())
    program = {
        "steps": None,
        "steps_arg": "max_steps",
        "saves": ["out/last.ckpt"],
        "resume_args": {"ckpt_path": "{checkpoint}"},
    }
    assert attempts.train(args={"max_steps": 6}, **program) == 0, attempts.output
    assert [step for step, _ in attempts.series("train/loss")] == list(range(1, 7))
    assert attempts.codes == []
    last = attempts.records("checkpoint")[-1]
    assert last.step == 6
    resumed = {"resume_from": last.path, "args": {"max_steps": 8}, **program}
    assert attempts.train(**resumed) == 0, attempts.output
    assert [step for step, _ in attempts.series("train/loss")] == [7, 8]


@pytest.mark.nightly  # test_sources.py and test_lehr_log.py read what these loggers write.
@pytest.mark.parametrize("logger", ["csv", "tensorboard", "wandb"])
def test_script_with_a_logger_of_lightning_is_recorded_killed_and_resumed(attempts, logger):
    attempts.write((PROGRAMS / "pl_own.py").read_text())
    program = {
        "steps": None,
        "steps_arg": "max_steps",
        "saves": ["out/*.ckpt"],
        "saves_newest": True,
        "resume_args": {"ckpt_path": "{checkpoint}"},
    }
    args = {"max_steps": 12, "logger": logger}
    assert attempts.train(args=args, **program) == 0, attempts.output
    whole = attempts.series("train/loss")
    assert [step for step, _ in whole] == list(range(12))
    assert [step for step, _ in attempts.series("val/loss")] == [3, 7, 11]
    assert attempts.codes == []

    process = attempts.start(args={**args, "pause_s": 0.8}, **program)
    until(lambda: attempts.records("checkpoint"), within_s=150, what="a checkpoint")
    for pid in (*procfs.children(process.pid), process.pid):
        os.kill(pid, signal.SIGKILL)
    process.communicate()
    saved = attempts.records("checkpoint")[-1]
    assert saved.step % 2 == 1, "the script saves after each second step; it counts them from 0"
    assert attempts.series("train/loss") == whole[: len(attempts.series("train/loss"))]

    # Lightning gives what it saves now another name, since its folder is another one.
    assert attempts.train(resume_from=saved.path, args=args, **program) == 0, attempts.output
    assert attempts.series("train/loss") == whole[saved.step + 1 :]
    assert attempts.codes == []
    again = attempts.records("checkpoint")[-1]
    assert again.step == 11
    more = {"resume_from": again.path, "args": {**args, "max_steps": 14}}
    assert attempts.train(**more, **program) == 0, attempts.output
    assert [step for step, _ in attempts.series("train/loss")] == [12, 13]
