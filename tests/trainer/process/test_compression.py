"""Gradients in 16 bits between two real ranks, at the size of a 1B model's."""

from __future__ import annotations

import json
import os
import subprocess
import sys

import pytest

from lehr_testing.paths import TESTING
from lehr_trainer.configs.parallel import ParallelConfig

SCRIPT = TESTING / "compression_ranks.py"


@pytest.fixture(scope="module")
def found(tmp_path_factory):
    folder = tmp_path_factory.mktemp("ranks")
    env = {**os.environ, "OMP_NUM_THREADS": "1"}
    ranks = [
        subprocess.Popen(
            [sys.executable, str(SCRIPT), str(rank), str(folder / "store"), str(folder / f"{rank}.json")],
            env=env, stderr=subprocess.PIPE, text=True,
        )
        for rank in range(2)
    ]  # fmt: skip
    try:
        for rank in ranks:
            _, errors = rank.communicate(timeout=240)
            assert rank.returncode == 0, errors
    finally:
        for rank in ranks:
            rank.kill()
            rank.wait()
    both = [json.loads((folder / f"{rank}.json").read_text()) for rank in range(2)]
    numbers = [{k: v for k, v in one.items() if k != "overlap"} for one in both]
    assert numbers[0] == numbers[1]
    return both[0]


def test_scaled_fp16_keeps_digits_that_torch_hook_loses(found) -> None:
    assert found["fp16"] == {"error": pytest.approx(0, abs=5e-4), "overflows": 0}
    assert found["torchs_fp16"] > 10 * found["fp16"]["error"]


@pytest.mark.parametrize("values", ["bf16", "bf16_overflow"])
def test_bf16_keeps_the_range_and_loses_digits(found, values: str) -> None:
    assert found["fp16"]["error"] < found[values]["error"] < 5e-3
    assert found[values]["overflows"] == 0


def test_fp16_overflow_is_counted_and_changes_no_other_value(found) -> None:
    assert found["fp16_overflow"]["overflows"] == 1
    assert found["fp16_overflow"]["error"] < 5e-4


@pytest.mark.parametrize("compression", ["none", "bf16"])
def test_buckets_are_sent_before_backward_ends(found, compression: str) -> None:
    seen = found["overlap"][compression]
    assert seen["sent"] >= 4
    assert seen["before_the_end"] >= seen["sent"] - 1


def test_one_large_bucket_is_not_sent_early(found) -> None:
    assert found["overlap"]["one_bucket"]["before_the_end"] < found["overlap"]["none"]["sent"] - 1


def test_a_static_graph_refuses_accumulation() -> None:
    ParallelConfig(static_graph=True).check_accumulation(1)
    with pytest.raises(
        ValueError, match=r"static_graph cannot be combined with .* \(4 micro-batches"
    ):
        ParallelConfig(static_graph=True).check_accumulation(4)
