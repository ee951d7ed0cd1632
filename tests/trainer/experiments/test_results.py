"""Results of rows: those that fail, those that are kept, the table."""

from __future__ import annotations

import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest

from lehr_testing.paths import ROOT
from lehr_trainer.experiments import SIZES, results
from lehr_trainer.experiments.measure import RowOutcome
from lehr_trainer.experiments.rows import BenchRow, Hardware, rows

TINY = SIZES["tiny"]


def cpu_rows(*tables: str) -> list[BenchRow]:
    return list(rows(TINY, Hardware("cpu", 2), tables, eager=True))


@pytest.mark.timeout(600)
def test_failing_row_has_its_error_and_a_further_call_measures_what_is_missing(
    tmp_path, monkeypatch
) -> None:
    kernels = {row.name: row for row in cpu_rows("attention")}
    auto, cudnn = kernels["auto"], kernels["cudnn"]
    [two] = [row for row in cpu_rows("ranks") if row.name == "2 GPUs"]
    # More than a rank's share, so that a step has no micro-batch.
    batch = {**two.config["batch"], "micro_batch": two.config["batch"]["sequences"]}
    broken = replace(two, name="broken", config={**two.config, "batch": batch})
    skipped = replace(auto, name="skipped", skip="no such machine")
    lines: list[str] = []
    bench = results.Bench(TINY, "cpu", lines.append, timeout_s=300, folder=tmp_path)
    every = [auto, cudnn, skipped, two, broken]
    table = results.run(bench, "attention", every)
    good, refused, left_out, pair, wrong = table.rows
    assert good.values["loss"] == pytest.approx(pair.values["loss"], rel=0.1)
    assert good.values["speedup"] == pair.values["speedup"] == 1.0
    assert "needs a CUDA GPU" in refused.note
    assert left_out.note == "no such machine"
    assert wrong.note.startswith("UnboundLocalError")
    # The trainer's own refusals say what the machine lacks.
    assert [row.failed for row in table.rows] == [False, False, False, False, True]
    assert any("cudnn: attention.backend" in line for line in lines)

    del lines[:]
    again_failed = RowOutcome(error="again", failed=True)
    monkeypatch.setattr(results, "measure", lambda row, **_: again_failed)
    again = results.run(bench, "attention", every)
    assert again.rows[:4] == table.rows[:4]
    assert lines[0] == "broken"
    assert "| good" not in (text := (tmp_path / "results.md").read_text())
    assert f"| {auto.name} " in text


def test_no_row_is_started_after_the_budget(tmp_path: Path) -> None:
    masks = cpu_rows("masks")
    bench = results.Bench(TINY, "cpu", lambda _line: None, folder=tmp_path, budget_s=0)
    table = results.run(bench, "gpu", masks)
    assert [row.note for row in table.rows] == ["", *["not measured yet"] * 3]


def test_a_row_cut_off_by_the_budget_is_measured_by_the_next_call(tmp_path, monkeypatch) -> None:
    every = [*cpu_rows("masks"), *cpu_rows("options")]
    monkeypatch.setattr(
        results,
        "measure",
        lambda row, **_: (
            RowOutcome(error="no answer within 9 s", failed=True)
            if row.table == "options"
            else RowOutcome(step_s=1.0, cpu_s=1.0, loss=2.0)
        ),
    )
    bench = results.Bench(TINY, "cpu", lambda _line: None, folder=tmp_path, budget_s=9)
    table = results.run(bench, "gpu", every)
    assert table.rows[-2].note == "not measured yet"
    # The first of the next call has had the whole budget.
    assert results.run(bench, "gpu", every).rows[-4].note == "no answer within 9 s"


def test_plan_of_a_gpus_row_is_for_a_gpu_and_its_ranks(monkeypatch) -> None:
    monkeypatch.setattr("torch.cuda.get_device_capability", lambda: (9, 0))
    every = {
        row.key: row for row in rows(SIZES["llama-1b-64x2048"], Hardware("cuda", 8), ["ranks"])
    }
    alone, two = (results.planned_bytes(every[f"ranks/{name}"]) for name in ("1 GPU", "2 GPUs"))
    # The measured peak has neither context nor fragmentation.
    assert alone == pytest.approx(46.3e9, rel=0.01)
    # Gradients stay in DDP's buckets.
    assert two >= alone


@pytest.mark.nightly
@pytest.mark.timeout(1200)
def test_each_part_for_a_rented_gpu_runs_at_a_toy_size_on_a_cpu(tmp_path: Path) -> None:
    command = [sys.executable, ROOT / "tests/gpu/session.py", "--rehearse", "--out", tmp_path]
    done = subprocess.run(command, check=False)
    assert done.returncode == 0, (tmp_path / "report.md").read_text()
