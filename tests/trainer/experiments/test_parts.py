"""Parts of the experiments: rows that fail, searches, verdicts, explanations."""

from __future__ import annotations

from pathlib import Path

import psutil
import pytest

from lehr_trainer.configs.train import TrainConfig
from lehr_trainer.experiments import command, gpu
from lehr_trainer.experiments.batch import largest_that_fits
from lehr_trainer.experiments.case import Case, config
from lehr_trainer.experiments.gpu import verdicts
from lehr_trainer.experiments.gpu_rows import SECTIONS, Hardware, rows
from lehr_trainer.experiments.plan import BenchPlan
from lehr_trainer.experiments.runner import BenchProcess, measure
from lehr_trainer.experiments.sizes import SIZES
from lehr_trainer.experiments.table import Column, ExperimentTable, Row, change, ratio
from lehr_trainer.planning.memory import training_memory

TINY = SIZES["tiny"]
H100 = Hardware("cuda", gpus=1, memory_gb=84.9)
H200 = Hardware("cuda", gpus=8, memory_gb=150.1)


@pytest.mark.timeout(600)
def test_failing_row_has_its_error_and_stops_no_other() -> None:
    cases = [
        Case("good", "training", config(TINY, "cpu")),
        Case("bad", "training", config(TINY, "cpu", attention={"backend": "cudnn"})),
        Case("not here", "training", {}, skip="no such machine"),
        Case("worse", "training", config(TINY, "cpu", loss={"name": "liger"})),
    ]
    lines: list[str] = []
    good, bad, skipped, worse = measure(
        cases, turns=2, steps=1, together=True, log=lines.append, timeout_s=300
    )
    assert good.error == ""
    assert len(good.seconds) == 2
    assert len(good.facts["losses"]) == 2 + 2  # two to warm up
    assert good.facts["memory_bytes"] > 0
    assert "needs a CUDA GPU" in bad.error
    assert "needs a CUDA GPU" in worse.error
    assert skipped.error == "no such machine"
    assert bad.step_s is None
    assert any("bad: attention.backend" in line for line in lines)
    # Both say what the machine lacks.
    assert not any(one.failed for one in (good, bad, skipped, worse))


@pytest.mark.timeout(600)
def test_row_of_two_ranks_trains_on_both_and_ends_with_the_first_error() -> None:
    batch = {"sequences": 4, "sequence_length": 64, "micro_batch": 1}
    cases = [
        Case("two", "training", config(TINY, "cpu", batch=batch), ranks=2),
        Case("bad", "training", config(TINY, "cpu", attention={"backend": "cudnn"}), ranks=2),
        Case("broken", "training", {**config(TINY, "cpu"), "model": {}}, ranks=2),
    ]
    two, bad, broken = measure(
        cases, turns=1, steps=1, together=True, log=lambda _line: None, timeout_s=300
    )
    assert two.error == ""
    assert len(two.facts["losses"]) == 3
    assert two.facts["world_size"] == 2
    assert "needs a CUDA GPU" in bad.error
    assert not bad.failed
    assert broken.error.startswith("ValidationError")
    assert broken.failed


def test_port_where_ranks_meet_is_held_before_they_start() -> None:
    """A port that was only looked up could be taken by another program meanwhile."""

    def listening() -> set[int]:
        found = psutil.Process().net_connections("tcp")
        return {one.laddr.port for one in found if one.status == psutil.CONN_LISTEN}

    before = listening()
    process = BenchProcess(Case("two", "training", config(TINY, "cpu"), ranks=2), timeout_s=300)
    try:
        assert len(listening() - before) == 1
    finally:
        process.end()
    assert listening() == before


@pytest.mark.parametrize("most", [0, 1, 2, 3, 7, 8, 13, 100, 1000])
def test_the_largest_batch_is_found_to_within_an_eighth(most: int) -> None:
    asked: list[int] = []

    def fits(count: int) -> bool:
        asked.append(count)
        return count <= most

    found = largest_that_fits(fits)
    assert found <= most
    assert most - found <= max(1, most // 8)
    assert len(asked) == len(set(asked)) <= 16


def test_each_row_of_the_gpu_bench_is_a_valid_and_different_training() -> None:
    every = list(rows(SIZES["llama-1b-64x2048"], H100))
    keys = [row.key for row in every]
    assert len(keys) == len(set(keys))
    assert {row.section for row in every} == set(SECTIONS)
    target = [row.case.config for row in every if row.section == "target"]
    assert {(c["batch"]["sequences"], c["batch"]["sequence_length"]) for c in target} == {
        (64, 2048)
    }


def test_targets_are_judged_by_measured_figures_only() -> None:
    figures = {
        "target/bf16, a": {"step": 1.0, "rate": 60e3, "mfu": 50.0, "reserved": 60.0},
        "target/bf16, b": {"step": 1.0, "rate": 90e3, "mfu": 75.0, "reserved": 80.0},
        "target/bf16, c": {"step": 1.0, "rate": 70e3, "mfu": 58.0, "reserved": 74.0},
        "target/FP8, a": {"step": 1.0, "rate": 72e3, "reserved": 60.0},
        "target/FP8, c": {},
    }
    judged = verdicts(figures, on_cuda=True)
    assert "bf16, c" in judged[0]
    assert "58.0 %" in judged[0]
    assert "1.20x" in judged[1]
    assert verdicts({}, on_cuda=True) == ["bf16: nothing measured under 75 GB yet."]
    assert "not judged" in verdicts(figures, on_cuda=False)[0]


def test_a_table_explains_its_columns_and_leaves_out_empty_ones() -> None:
    made = ExperimentTable(
        "x", "tiny", "A title", {"torch": "2"},
        (Column("a", "first", "ms", "by hand"), Column("b", "second", "", "never")),
        (Row("one", {"a": 1234.5}), Row("two", {}, "not | here")),
    )  # fmt: skip
    assert "second" not in made.text()
    assert "first: by hand" in made.text()
    assert "1,234.50" in made.text()
    assert r"not \| here" in made.markdown()
    assert ratio(3.0, 0.0) is None
    assert change(1.5, 1.0) == pytest.approx(50)


def test_rows_that_a_machine_cannot_run_name_the_reason() -> None:
    skipped = {row.key: row.case.skip for row in rows(SIZES["llama-1b-64x2048"], H100)}
    assert skipped["ranks/8 GPUs"] == "needs 8 GPUs; this machine has 1"
    large = "target/bf16, micro-batch 32, nothing recomputed, larger GPU"
    assert skipped[large] == "for GPUs of 100 GB or more; this one has 85"
    assert skipped["target/bf16, micro-batch 16, nothing recomputed"] == ""
    assert not any(row.case.skip for row in rows(SIZES["llama-1b-64x2048"], H200))


def test_tiny_sizes_have_no_row_twice() -> None:
    keys = [row.key for row in rows(TINY, Hardware("cpu", gpus=2))]
    assert len(keys) == len(set(keys)) > 70


def test_several_gpus_get_the_same_work_each() -> None:
    of_ranks = [r.case for r in rows(SIZES["llama-1b-64x2048"], H200) if r.section == "ranks"]
    assert {(c.ranks, c.config["batch"]["sequences"] // c.ranks) for c in of_ranks} == {
        (1, 64), (2, 64), (4, 64), (8, 64),
    }  # fmt: skip


def test_joint_products_and_the_bf16_residual_are_measured_beside_neither() -> None:
    cases = {r.case.name: r.case.config for r in rows(SIZES["llama-1b-64x2048"], H100)
             if r.section == "options"}  # fmt: skip
    assert {
        name: (c["compile"]["joint_products"], c["precision"]["residual"])
        for name, c in cases.items()
    } == {
        "neither": (False, "fp32"),
        "joint products": (True, "fp32"),
        "bf16 residual stream": (False, "bf16"),
        "both": (True, "bf16"),
    }
    changed = ("compile", "precision")
    same = [{k: v for k, v in c.items() if k not in changed} for c in cases.values()]
    assert same == [same[0]] * 4
    assert {c["compile"]["scope"] for c in cases.values()} == {"block"}


def test_planned_memory_stands_beside_the_measured(tmp_path: Path) -> None:
    """Rows that ran out of memory, and those that are not measured, have their plan, too."""
    plan = BenchPlan(
        TINY, "cpu", lambda _line: None, out=tmp_path, budget_s=0, only=("masks",), eager=True
    )
    made = gpu.run(plan)
    titles = [column.key for column in made.columns]
    assert titles.index("planned") == titles.index("memory") + 1
    of_rows = {row.name: row for row in made.rows[1:]}
    assert {row.note for row in of_rows.values()} == {"not measured yet"}
    configs = {r.case.name: r.case.config for r in rows(TINY, Hardware("cpu", 2), eager=True)
               if r.section == "masks"}  # fmt: skip
    assert of_rows.keys() == configs.keys()
    for name, values in configs.items():
        phases = training_memory(TrainConfig.model_validate(values)).phases
        most = max(m.total for phase, m in phases.items() if phase != "evaluation")
        assert of_rows[name].values == {"planned": pytest.approx(most / 1e6)}
    assert "planned (MB)" in (tmp_path / "results.md").read_text()


def test_plan_of_a_gpus_row_is_for_a_gpu_and_its_ranks() -> None:
    every = {row.key: row.case for row in rows(SIZES["llama-1b-64x2048"], H200)}
    alone, two = (gpu.planned_bytes(every[f"ranks/{name}"]) for name in ("1 GPU", "2 GPUs"))
    # The measured peak has neither context nor fragmentation.
    assert alone == pytest.approx(46.3e9, rel=0.01)
    # Gradients stay in DDP's buckets.
    assert two >= alone


def test_lengths_of_attention_have_the_same_tokens() -> None:
    cases = [r.case.config for r in rows(SIZES["llama-1b-64x2048"], H100) if r.section == "context"]
    shapes = {(c["batch"]["sequences"], c["batch"]["sequence_length"]) for c in cases}
    assert shapes == {(16, 512), (8, 1024), (4, 2048), (2, 4096)}
    assert all(c["model"]["max_sequence_length"] >= c["batch"]["sequence_length"] for c in cases)


@pytest.mark.parametrize(
    ("arguments", "shape"),
    [
        (["loader", "--size", "small"], (64, 256)),
        (["loader", "--size", "small", "--sequences", "16"], (16, 256)),
        (["loader", "--size", "tiny"], (4, 64)),
        (["ladder", "--size", "small"], (4, 256)),
    ],
)
def test_size_of_a_batch_is_the_one_that_is_asked_for(
    arguments: list[str], shape: tuple[int, int]
) -> None:
    given = command._parser().parse_args([*arguments, "--device", "cpu"])
    size, _ = command._size_and_device(given)
    assert (size.sequences, size.sequence_length) == shape
