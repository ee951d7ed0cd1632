"""`lehr bench`: the published tables, at the size of a test."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from lehr_testing.forking import run
from lehr_trainer.configs.loss import LOSSES
from lehr_trainer.experiments.gpu_rows import SECTIONS

LEHR = str(Path(sys.executable).parent / "lehr")
TINY = ("--size", "tiny", "--device", "cpu")

pytestmark = pytest.mark.timeout(900)  # Rows are processes: minutes, where the machine is busy.


@pytest.fixture(scope="module")
def lehr(tmp_path_factory):
    home = tmp_path_factory.mktemp("home")

    def call(*args: str) -> subprocess.CompletedProcess[str]:
        env = {**os.environ, "LEHR_HOME": str(home), "OMP_NUM_THREADS": "1"}
        return subprocess.run(
            [LEHR, "bench", *args], env=env, capture_output=True, text=True, check=False
        )

    return call


def table(done: subprocess.CompletedProcess[str]) -> dict[str, Any]:
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout)
    keys = {column["key"] for column in found["columns"]}
    for column in found["columns"]:
        assert column["method"], column
    for row in found["rows"]:
        figures = {k for k, v in row["values"].items() if v is not None}
        # A row has figures or a reason why it has none.
        assert figures & keys or row["note"] or row["name"] in SECTIONS.values(), row
    return found


def figures(found: dict[str, Any], key: str) -> dict[str, float]:
    return {
        row["name"]: row["values"][key]
        for row in found["rows"]
        if row["values"].get(key) is not None
    }


@pytest.mark.nightly
def test_ladder_keeps_tokens_equal_and_notes_what_does_not_apply(lehr) -> None:
    found = table(lehr("ladder", *TINY, "--eager", "--json"))
    losses = figures(found, "loss")
    assert len(losses) >= 8
    # Batches made in any way hold the same tokens, and no rung changes what is learned.
    assert max(losses.values()) - min(losses.values()) < 1e-3
    notes = {row["name"]: row["note"] for row in found["rows"]}
    assert "CPU has none" in notes["+ TF32"]
    assert "needs a GPU" in notes["+ FP8"]
    memory = figures(found, "memory")
    assert all(0 < value < 1000 for value in memory.values())
    assert figures(found, "speedup")["naive, memmap, fp32, eager"] == 1.0


@pytest.mark.nightly
def test_every_loss_is_judged_against_float64(lehr) -> None:
    found = table(lehr("losses", *TINY, "--json"))
    off = figures(found, "value_error")
    anywhere = {name for name, loss in LOSSES.items() if loss.runs_on_any_cpu}
    assert set(off) == anywhere | {"torch_chunked"}
    assert off["chunked"] < 5
    assert off["bf16_softmax"] > 100 * max(off["chunked"], 1)
    notes = {row["name"]: row["note"] for row in found["rows"]}
    assert "needs a CUDA GPU" in notes["liger"]
    assert figures(found, "weight_error")["torch_chunked"] < 5


@pytest.mark.nightly  # trainer/experiments/test_parts.py has the rows.
def test_table_is_printed_with_units(lehr) -> None:
    done = lehr("loader", *TINY)
    assert done.returncode == 0, done.stderr
    assert "batch (ms)" in done.stdout
    assert "the loader, memory, one thread" in done.stdout
    assert "Machine: torch" in done.stdout
    assert "setting up" in done.stderr


@pytest.mark.nightly  # It measures for 10 s.
def test_loader_measures_the_batch_that_is_asked_for(lehr) -> None:
    found = table(lehr("loader", *TINY, "--sequences", "3", "--sequence-length", "32", "--json"))
    assert found["title"] == "Batches of [3, 32]"
    [row] = [row for row in found["rows"] if row["name"] == "np.stack of slices, memory"]
    # The rate and the time of a batch show how many tokens it has.
    tokens = row["values"]["rate"] * 1e6 * row["values"]["batch"] / 1e3
    assert tokens == pytest.approx(3 * 32)


@pytest.mark.nightly  # It trains eight times.
def test_gpu_bench_resumes_where_it_stopped(lehr, tmp_path) -> None:
    out = ("--out", str(tmp_path), "--only", "attention", "--eager", "--json")
    nothing = table(lehr("gpu", *TINY, *out, "--budget-s", "0"))
    assert {row["note"] for row in nothing["rows"][1:]} == {
        "not measured yet",
        "left out by --eager",
    }
    whole = table(lehr("gpu", *TINY, *out))
    assert set(figures(whole, "step")) == {"auto", "flash", "math"}
    notes = {row["name"]: row["note"] for row in whole["rows"]}
    assert "needs a CUDA GPU" in notes["fa3"]  # it failed; the others went on
    assert "| auto |" in (tmp_path / "results.md").read_text()
    files = {path: path.stat().st_mtime_ns for path in tmp_path.glob("*.json")}
    assert len(files) == 7
    again = table(lehr("gpu", *TINY, *out))
    assert figures(again, "step") == figures(whole, "step")
    assert {path: path.stat().st_mtime_ns for path in tmp_path.glob("*.json")} == files


@pytest.mark.parametrize(
    ("args", "output"),
    [
        (("laddr",), "there is no experiment 'laddr'. Did you mean ladder?"),
        (("ladder", "--size", "smal"), "there is no size 'smal'. Did you mean small?"),
        (("ladder", "--device", "cudaa"), "there is no device 'cudaa'. Did you mean cuda?"),
        (("ladder", *TINY, "--sequence-length", "9999"), "longer than the model's 2048"),
        (("losses", "--size", "llama-1b-64x2048", "--device", "cpu"), "takes minutes on a CPU"),
        (("gpu", *TINY, "--only", "fp9"), "there is no section 'fp9'. Did you mean fp8?"),
    ],
)
def test_unknown_name_gets_the_nearest_valid_one(args, output) -> None:
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    done = run("lehr_trainer", "bench", *args, environment=environment)
    assert done.returncode == 2
    assert output in done.stderr
    assert "Traceback" not in done.stderr


def test_error_of_the_trainer_is_the_error_of_lehr_bench(lehr) -> None:
    done = lehr("ladder", "--size", "smal")
    assert done.returncode == 2
    assert "there is no size 'smal'. Did you mean small?" in done.stderr
    assert "Traceback" not in done.stderr


@pytest.mark.nightly
@pytest.mark.parametrize("name", ["compile", "checkpointing", "precision", "optimizers", "batch"])
def test_other_tables_have_figures(lehr, name: str) -> None:
    options = ("--memory-gb", "0.01") if name == "batch" else ()
    found = table(lehr(name, *TINY, *options, "--json"))
    assert len(figures(found, "step")) >= 2
    if name == "compile":
        kernels = figures(found, "kernels")
        assert kernels["block, default"] < kernels["eager"]
    if name == "batch":
        assert "The largest batch that fits" in found["notes"][0]
