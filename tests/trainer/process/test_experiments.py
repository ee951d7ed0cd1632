"""`lehr bench`, at the size of a test."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from lehr_testing.forking import run

LEHR = str(Path(sys.executable).parent / "lehr")
TINY = ("--size", "tiny", "--device", "cpu")
ENVIRONMENT = {**os.environ, "OMP_NUM_THREADS": "1"}


@pytest.mark.parametrize(
    ("args", "output"),
    [
        (("laddr",), "there is no table 'laddr'. Did you mean ladder?"),
        (("ladder", "--size", "smal"), "there is no size 'smal'. Did you mean small?"),
        (("ladder", "--device", "cudaa"), "there is no device 'cudaa'. Did you mean cuda?"),
        (("ladder", *TINY, "--sequence-length", "9999"), "longer than the model's 2048"),
        (("losses", "--size", "llama-1b-64x2048", "--device", "cpu"), "takes minutes on a CPU"),
        (("gpu", *TINY, "--only", "fp9"), "there is no section 'fp9'. Did you mean fp8?"),
    ],
)
def test_unknown_name_gets_the_nearest_valid_one(args, output) -> None:
    done = run("lehr_trainer", "bench", *args, environment=ENVIRONMENT)
    assert done.returncode == 2
    assert output in done.stderr
    assert "Traceback" not in done.stderr


def test_error_of_the_trainer_is_the_error_of_lehr_bench() -> None:
    command = [LEHR, "bench", "ladder", "--size", "smal"]
    done = subprocess.run(command, env=ENVIRONMENT, capture_output=True, text=True, check=False)
    assert done.returncode == 2
    assert "there is no size 'smal'. Did you mean small?" in done.stderr
    assert "Traceback" not in done.stderr
