"""The rows of the tables: valid and different trainings, and the reasons of those left out."""

from __future__ import annotations

import pytest

from lehr_trainer.configs.train import TrainConfig
from lehr_trainer.experiments import SECTIONS, SIZES, TABLES
from lehr_trainer.experiments.rows import BenchRow, Hardware, rows

TINY = SIZES["tiny"]
LARGE = SIZES["llama-1b-64x2048"]
H200 = Hardware("cuda", gpus=8, memory_gb=150.1)


@pytest.fixture(autouse=True)
def _gpu_of_hopper(monkeypatch) -> None:
    monkeypatch.setattr("torch.cuda.get_device_capability", lambda: (9, 0))


def of_table(name: str, hardware: Hardware = H200, *, eager: bool = False) -> list[BenchRow]:
    return list(rows(LARGE, hardware, [name], eager=eager))


@pytest.mark.parametrize(("size", "hardware"), [(LARGE, H200), (TINY, Hardware("cpu", gpus=2))])
def test_each_row_is_a_valid_and_different_training(size, hardware) -> None:
    every = list(rows(size, hardware, TABLES))
    keys = [row.key for row in every]
    assert len(keys) == len(set(keys)) > 80
    assert {row.table for row in every} == {"ladder", *SECTIONS}
    for row in every:
        assert row.skip or TrainConfig.model_validate(row.config).device == hardware.device


def test_rows_that_a_machine_cannot_run_name_the_reason() -> None:
    skipped = {row.key: row.skip for row in rows(LARGE, Hardware("cuda", 1, 84.9), SECTIONS)}
    assert skipped["ranks/8 GPUs"] == "needs 8 GPUs; this machine has 1"
    large = "target/micro-batch 32, nothing recomputed, larger GPU"
    assert skipped[large] == "for GPUs of 100 GB or more; this one has 85"
    assert sum(map(bool, skipped.values())) == 6 + 4
    assert not any(row.skip for row in rows(LARGE, H200, SECTIONS))
    on_cpu = {row.key: row.skip for row in rows(TINY, Hardware("cpu", 2), TABLES)}
    assert "CPU has none" in on_cpu["precision/tf32"]
    assert "are for a GPU" in on_cpu["compile/block, reduce-overhead"]
    assert "emulate" in on_cpu["precision/fp16"]


def test_eager_compiles_no_row() -> None:
    every = list(rows(LARGE, H200, TABLES, eager=True))
    assert {row.config["compile"]["scope"] for row in every if not row.skip} == {"none"}
    assert {row.skip for row in every} == {"", "left out by --eager"}


def test_a_rung_adds_to_those_before_it_that_apply() -> None:
    ladder = {row.name: row.config for row in of_table("ladder")}
    last = ladder["+ FP8"]
    assert (last["compile"]["mode"], last["batch"]["micro_batch"]) == ("reduce-overhead", None)
    assert (last["precision"]["compute"], last["loss"]["name"]) == ("bf16", "chunked")
    assert {c["batch"]["sequences"] for c in ladder.values()} == {64}
    eager = {row.name: row for row in of_table("ladder", eager=True)}
    assert eager["+ torch.compile by block"].skip
    assert eager["+ FP8"].config["precision"]["fp8"]["recipe"] == "tensorwise"


def test_tables_compare_what_they_name() -> None:
    assert {(r.ranks, r.config["batch"]["sequences"] // r.ranks) for r in of_table("ranks")} == {
        (1, 64), (2, 64), (4, 64), (8, 64),
    }  # fmt: skip
    shapes = {tuple(r.config["batch"][k] for k in ("sequences", "sequence_length"))
              for r in of_table("context")}  # fmt: skip
    assert shapes == {(16, 512), (8, 1024), (4, 2048), (2, 4096)}
    options = {r.name: r.config for r in of_table("options")}
    assert {
        name: (c["compile"]["joint_products"], c["precision"]["residual"])
        for name, c in options.items()
    } == {
        "neither": (False, "fp32"),
        "joint products": (True, "fp32"),
        "bf16 residual stream": (False, "bf16"),
        "both": (True, "bf16"),
    }
    for table, fields in {
        "options": {"compile", "precision"},
        "masks": {"attention", "compile"},
        "losses": {"loss", "batch"},
        "optimizers": {"optimizer"},
    }.items():
        first, *others = (r.config for r in of_table(table))
        for config in others:
            assert {key for key in config if config[key] != first[key]} <= fields, table
