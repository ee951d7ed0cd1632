"""Scripts with transformers' Trainer: with Lehr's callback, and as their users write them."""

from __future__ import annotations

from pathlib import Path

import pytest

from lehr.code.project_copy import described
from lehr_testing.paths import TESTS
from lehr_testing.program_attempts import Attempts

SCRIPTS = TESTS / "lehr_testing/programs"

pytestmark = [
    pytest.mark.nightly,  # test_supervisor.py and test_resume.py have scripts without transformers.
    pytest.mark.timeout(3600),  # Two attempts of 20 s of processor time, whatever runs beside.
]

UNUSED = ("datasets", "pandas", "sklearn", "torchao", "wandb.sdk.launch")
"""What transformers and wandb import without a need, where it is installed: a third of the time."""


@pytest.fixture
def attempts(tmp_path: Path) -> Attempts:
    made = Attempts(tmp_path, limit_s=None)
    # Python imports this module by itself, from the folder of the script.
    made.write(f"import sys\nsys.modules.update(dict.fromkeys({UNUSED}))", "sitecustomize.py")
    return made


def test_trainer_of_transformers_is_recorded_and_resumes_bitwise(attempts):
    attempts.write((SCRIPTS / "hf.py").read_text())
    program = {
        "args": {"max_steps": 6},
        "steps": None,
        "steps_arg": "max_steps",
        "resume_args": {"resume_from_checkpoint": "{checkpoint}"},
    }
    assert attempts.train(**program) == 0, attempts.output
    whole = attempts.series("train/loss")
    assert [step for step, _ in whole] == list(range(1, 7))
    first = attempts.records("checkpoint")[0]
    kept = [c for c in attempts.records("checkpoint") if (attempts.run / c.path).is_dir()]
    assert [c.step for c in kept] == [4, 6]
    assert first.step == 2
    assert attempts.train(resume_from=kept[0].path, **program) == 0, attempts.output
    assert attempts.series("train/loss") == whole[4:]


@pytest.mark.parametrize("wandb", ["records", "lehr"])
def test_unchanged_script_that_reports_to_wandb_is_recorded_and_resumes_bitwise(attempts, wandb):
    pytest.importorskip("wandb.proto")
    attempts.write((SCRIPTS / "hf_own.py").read_text())
    attempts.root.mkdir()
    (attempts.root / "text.txt").write_text("to be or not to be, that is the question. " * 9)
    program = {
        "data": ["text.txt"],
        "data_files": {"text.txt": described(str(attempts.root), "text.txt", ())},
        "args": {
            "train_file": "text.txt",
            "output_dir": "out",
            "report_to": "wandb",
            "num_train_epochs": 2,
            "logging_steps": 1,
            "eval_strategy": "epoch",
            "save_steps": 2,
            "per_device_train_batch_size": 4,
            "do_train": True,
            "use_cpu": True,
        },
        "flags": ["do_train", "use_cpu"],
        "steps": None,  # Its epochs decide.
        "wandb": wandb,
        "saves": ["out/checkpoint-4"],
        "resume_args": {"resume_from_checkpoint": "{checkpoint}"},
    }
    assert attempts.train(**program) == 0, attempts.output
    whole = attempts.series("train/loss")
    assert [step for step, _ in whole] == [1, 2, 3, 4, 5, 6], attempts.output
    assert [step for step, _ in attempts.series("val/loss")] == [3, 6]
    assert len(attempts.series("train/lr")) == 6
    [finished] = attempts.records("finished")
    assert (finished.outcome, finished.step) == ("completed", 6)
    assert attempts.codes == []

    [saved] = attempts.records("checkpoint")
    assert saved.step == 4  # Records of steps 5 and 6 are within a second of the save.
    assert attempts.train(resume_from=saved.path, **program) == 0, attempts.output
    assert attempts.records("resumed")[0].step == saved.step
    assert attempts.series("train/loss") == whole[4:]
