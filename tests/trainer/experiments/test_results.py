"""Results of rows: those that fail, those that are kept, the table."""

from __future__ import annotations

import os
import signal
import time
from dataclasses import replace
from multiprocessing import Pipe
from pathlib import Path
from threading import Thread

import psutil
import pytest

from lehr_trainer.configs.train import TrainConfig
from lehr_trainer.experiments import results
from lehr_trainer.experiments.best_spec import advice, changes
from lehr_trainer.experiments.rows import BenchRow, Hardware, rows
from lehr_trainer.experiments.runner import BenchProcess, RowOutcome
from lehr_trainer.experiments.sizes import SIZES
from lehr_trainer.experiments.worker import end_after
from lehr_trainer.planning.memory import training_memory

TINY = SIZES["tiny"]


def cpu_rows(*tables: str) -> list[BenchRow]:
    return list(rows(TINY, Hardware("cpu", 2), tables, eager=True))


@pytest.mark.timeout(600)
def test_failing_row_has_its_error_and_a_further_call_measures_what_is_missing(tmp_path) -> None:
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
    assert good.values["memory"] > 0
    assert "needs a CUDA GPU" in refused.note
    assert left_out.note == "no such machine"
    assert wrong.note.startswith("UnboundLocalError")
    # The trainer's own refusals say what the machine lacks.
    assert [row.failed for row in table.rows] == [False, False, False, False, True]
    assert any("cudnn: attention.backend" in line for line in lines)

    del lines[:]
    again = results.run(replace(bench, timeout_s=299), "attention", every)
    assert again.rows[:4] == table.rows[:4]
    assert lines[0] == "setting up broken"
    assert "| good" not in (text := (tmp_path / "results.md").read_text())
    assert f"| {auto.name} " in text


def test_no_row_is_started_after_the_budget(tmp_path: Path) -> None:
    masks = cpu_rows("masks")
    bench = results.Bench(TINY, "cpu", lambda _line: None, folder=tmp_path, budget_s=0)
    table = results.run(bench, "gpu", masks)
    assert [row.note for row in table.rows] == ["", *["not measured yet"] * 3]
    # Rows that are not measured have their plan, too.
    for line, row in zip(table.rows[1:], masks, strict=True):
        phases = training_memory(TrainConfig.model_validate(row.config)).phases
        most = max(m.total for phase, m in phases.items() if phase != "evaluation")
        assert line.values["planned"] == pytest.approx(most / 1e6)
    keys = [column.key for column in table.columns]
    assert keys.index("planned") == keys.index("memory") + 1


def test_a_row_cut_off_by_the_budget_is_measured_by_the_next_call(tmp_path, monkeypatch) -> None:
    every = [*cpu_rows("masks"), *cpu_rows("options")]
    monkeypatch.setattr(
        results,
        "measure",
        lambda group, **_: [
            RowOutcome(error="no answer within 9 s", failed=True)
            if row.table == "options"
            else RowOutcome(seconds=[1.0], cpu_seconds=[1.0], facts={"losses": [2.0]})
            for row in group
        ],
    )
    bench = results.Bench(TINY, "cpu", lambda _line: None, folder=tmp_path, budget_s=9)
    table = results.run(bench, "gpu", every)
    assert table.rows[-2].note == "not measured yet"
    assert results.run(bench, "gpu", every).rows[-2].note == "no answer within 9 s"


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


def test_port_where_ranks_meet_is_held_before_they_start() -> None:
    """A port that was only looked up could be taken by another program meanwhile."""

    def listening() -> set[int]:
        connections = psutil.Process().net_connections("tcp")
        return {c.laddr.port for c in connections if c.status == psutil.CONN_LISTEN}

    before = listening()
    process = BenchProcess(replace(cpu_rows("masks")[0], ranks=2), timeout_s=300)
    try:
        assert len(listening() - before) == 1
    finally:
        process.end()
    assert listening() == before


def test_row_ends_with_its_bench_even_while_it_works() -> None:
    ours, theirs = Pipe()
    pid = os.fork()
    if pid == 0:
        ours.close()
        signal.alarm(60)
        Thread(target=end_after, args=(theirs, 0.0), daemon=True).start()
        while True:  # It compiles, and reads no order.
            time.sleep(1)
    theirs.close()
    ours.send("an order that is not read")
    ours.close()
    _, status = os.waitpid(pid, 0)
    assert os.waitstatus_to_exitcode(status) == 1


def test_fastest_usable_row_becomes_lines_of_a_spec(monkeypatch) -> None:
    monkeypatch.setattr("torch.cuda.get_device_capability", lambda: (9, 0))
    tables = ("target", "losses", "context", "options", "precision")
    every = {r.key: r for r in rows(SIZES["llama-1b-64x2048"], Hardware("cuda", 8), tables)}
    best = "target/micro-batch 16, swiglu recomputed"
    mfu = {
        best: 53.5,
        "target/micro-batch 8, nothing recomputed": 50.0,
        # FP8 is judged by its own peak, these losses round, and other lengths have other FLOPs.
        "target/FP8, micro-batch 16, swiglu recomputed": 60.0,
        "losses/in_autocast, 64 sequences": 61.0,
        "context/auto, 2 x the length": 62.0,
        # It rounds more than other trainings: for study.
        "options/bf16 residual stream": 64.0,
        "precision/fp32": 63.0,
    }
    [sentence] = advice(mfu, every)
    assert sentence == (
        f"Best MFU of all rows: 53.5 % ({best}). In the "
        "spec: train: {batch: {micro_batch: 16}, activation_checkpointing: {policy: swiglu}, "
        "compile: {scope: block}, precision: {compute: bf16}}"
    )
    assert advice({}, every) == []
    for row in every.values():
        values = {k: row.config[k] for k in ("model", "data", "batch", "steps", "validation")}
        lines = changes(row)
        values["batch"] = {**row.config["batch"], **lines.pop("batch", {})}
        config = TrainConfig.model_validate({**values, **lines}).model_dump(mode="json")
        for name in ("attention", "activation_checkpointing", "compile", "loss", "precision"):
            assert config[name] == row.config[name], row.key
