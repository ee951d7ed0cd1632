"""Activation checkpointing by part of the block, and of every second block."""

from __future__ import annotations

from typing import Any

from lehr_trainer.configs.train import TrainConfig
from lehr_trainer.experiments.case import Case, config
from lehr_trainer.experiments.plan import BenchPlan, rows_against
from lehr_trainer.experiments.table import Column, ExperimentTable, Row
from lehr_trainer.planning.memory import training_memory

_PUBLISHED: dict[str, str] = {
    "none": "H100: 0 % and 0 %",
    "embedding": "H100: ~0 % and -0.5 %",
    "norms": "H100: ~0 % and ~0 %",
    "attention": "H100: +6 % and -11 %",
    "swiglu": "H100: +6 % and -40 %",
    "block, every 2nd layer": "H100: +12 % and -33 %",
    "block": "H100: +17 % and -56 %",
}


def run(plan: BenchPlan) -> ExperimentTable:
    size = plan.size
    if size.name == "llama-1b-64x2048":  # without checkpointing no more than [16, 2048] fits
        size = size.with_batch(min(16, size.sequences), None)
    cases = [
        Case(name, "training", config(size, plan.device, **changes(name, plan)), note=published)
        for name, published in _PUBLISHED.items()
    ]
    outcomes = plan.measure(cases)
    rows = []
    unit = 1e9 if plan.on_cuda else 1e6
    for row, outcome in zip(rows_against(plan, outcomes, outcomes[0]), outcomes, strict=True):
        planned = training_memory(TrainConfig.model_validate(outcome.case.config)).peak / unit
        rows.append(Row(row.name, {**row.values, "planned": planned}, row.note))
    return ExperimentTable(
        experiment="checkpointing",
        size=plan.size.name,
        title=f"Activation checkpointing at [{size.sequences}, {size.sequence_length}]",
        machine=plan.machine(),
        columns=(
            *plan.step_columns(),
            Column("planned", "planned", "GB" if plan.on_cuda else "MB", "lehr plan's peak", 1),
            Column("delta_time", "time against none", "%", f"{plan.cost_name} / none's - 1", 1),
            Column("delta_memory", "memory against none", "%", "likewise", 1),
        ),
        rows=tuple(rows),
        notes=("H100: docs/reference-runs.md, [16, 2048], compiled, time and reserved memory.",),
    )


def changes(name: str, plan: BenchPlan) -> dict[str, Any]:
    policy, _, rest = name.partition(",")
    found: dict[str, Any] = {
        "activation_checkpointing": {"policy": policy, "every": 2 if rest else 1}
    }
    if plan.on_cuda:
        found["compile"] = {"scope": "block"}
        found["precision"] = {"compute": "bf16", "tf32": True}
    return found
