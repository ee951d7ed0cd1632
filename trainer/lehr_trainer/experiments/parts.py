"""Kernels and activation memory by part of the model, in fp32 and under autocast."""

from __future__ import annotations

from typing import Any

from lehr_trainer.experiments import launches
from lehr_trainer.experiments.bench_parts import PARTS
from lehr_trainer.experiments.case import Case, config
from lehr_trainer.experiments.plan import BenchPlan
from lehr_trainer.experiments.runner import RowOutcome
from lehr_trainer.experiments.table import Column, ExperimentTable, Row, change

_KINDS: dict[str, dict[str, Any]] = {
    "fp32": {"compute": "fp32", "tf32": False},
    "bf16": {"compute": "bf16", "tf32": True},
}


def run(plan: BenchPlan) -> ExperimentTable:
    size = plan.size
    if plan.on_cuda:
        # In fp32, eager and without checkpointing no more fits beside the weights.
        size = size.with_batch(min(4, size.sequences), None)
    cases = [
        Case(kind, "parts", config(size, plan.device, precision=precision))
        for kind, precision in _KINDS.items()
    ]
    outcomes = dict(zip(_KINDS, plan.measure(cases), strict=True))
    counted = launches.ON_CUDA if plan.on_cuda else launches.ON_CPU
    unit = "GB" if plan.on_cuda else "MB"
    kept = "storage that autograd keeps for backward, each counted where it is first kept"
    return ExperimentTable(
        experiment="parts",
        size=size.name,
        title=f"Parts of the model in a forward pass of [{size.sequences}, {size.sequence_length}]",
        machine=plan.machine(),
        columns=(
            *(Column(f"kernels_{k}", f"kernels, {k}", "", counted, 0) for k in _KINDS),
            *(Column(f"kept_{k}", f"kept, {k}", unit, f"{kept}; {k}") for k in _KINDS),
            Column("change", "memory of bf16 against fp32", "%", "kept in bf16 / in fp32 - 1", 1),
        ),
        rows=tuple(_row(part, outcomes, plan) for part in (*PARTS, "all")),
        notes=(
            "Eager: a compiled graph has no parts.",
            "bf16: autocast over fp32 weights; a part has the 16-bit copies of its weights.",
        ),
    )


def _row(part: str, outcomes: dict[str, RowOutcome], plan: BenchPlan) -> Row:
    values: dict[str, float | str | None] = {}
    unit = 1e9 if plan.on_cuda else 1e6
    kept: dict[str, float | None] = {}
    for kind, outcome in outcomes.items():
        values[f"kernels_{kind}"] = _figure(outcome.fact("kernels"), part)
        found = kept[kind] = _figure(outcome.fact("kept"), part)
        values[f"kept_{kind}"] = None if found is None else found / unit
    values["change"] = change(kept["bf16"], kept["fp32"])
    errors = [f"{kind}: {outcome.error}" for kind, outcome in outcomes.items() if outcome.error]
    return Row(part, values, "; ".join(errors))


def _figure(by_part: dict[str, int] | None, part: str) -> float | None:
    if by_part is None:
        return None
    return float(sum(by_part.values()) if part == "all" else by_part.get(part, 0))
