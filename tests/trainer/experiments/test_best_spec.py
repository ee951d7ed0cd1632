"""The advice names the fastest usable row, and only what differs from the defaults."""

from __future__ import annotations

from lehr_trainer.configs.train import TrainConfig
from lehr_trainer.experiments.best_spec import advice, changes
from lehr_trainer.experiments.gpu_rows import Hardware, rows
from lehr_trainer.experiments.sizes import SIZES

CASES = {
    row.key: row.case
    for row in rows(SIZES["llama-1b-64x2048"], Hardware("cuda", gpus=8, memory_gb=150.0))
}


def test_best_usable_row_becomes_lines_of_a_spec() -> None:
    figures = {
        "target/bf16, micro-batch 16, swiglu recomputed": {"mfu": 53.5},
        "target/bf16, micro-batch 8, nothing recomputed": {"mfu": 50.0},
        "target/bf16, micro-batch 64, blocks recomputed": {},
        # FP8 is judged by its own peak, these losses round, and other lengths have other FLOPs.
        "target/FP8, micro-batch 16, swiglu recomputed": {"mfu": 60.0},
        "losses/in_autocast, 64 sequences": {"mfu": 61.0},
        "context/auto, 2 x the length": {"mfu": 62.0},
        # It rounds more than other trainings: for study.
        "options/bf16 residual stream": {"mfu": 64.0},
        "precision/fp32": {"mfu": 63.0},
    }
    [sentence] = advice(figures, CASES)
    assert sentence == (
        "Best MFU of all rows: 53.5 % (target/bf16, micro-batch 16, swiglu recomputed). In the "
        "spec: train: {batch: {micro_batch: 16}, activation_checkpointing: {policy: swiglu}, "
        "compile: {scope: block}, precision: {compute: bf16}}"
    )


def test_nothing_measured_gives_no_advice() -> None:
    assert advice({"target/bf16, micro-batch 16, swiglu recomputed": {}}, CASES) == []


def test_advice_of_every_row_makes_a_valid_config_with_its_settings() -> None:
    for case in CASES.values():
        wanted = case.config
        values = {key: wanted[key] for key in ("model", "data", "batch", "steps", "validation")}
        found = changes(case)
        values["batch"] = {**wanted["batch"], **found.pop("batch", {})}
        config = TrainConfig.model_validate({**values, **found}).model_dump(mode="json")
        for name in ("attention", "activation_checkpointing", "compile", "loss", "precision"):
            assert config[name] == wanted[name], case.name
