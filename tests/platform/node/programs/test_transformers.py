"""A script with transformers' Trainer and Lehr's callback."""

from __future__ import annotations

from pathlib import Path

import pytest

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
