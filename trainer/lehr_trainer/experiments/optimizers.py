"""The optimizers beside each other: time, state, memory, loss at equal tokens."""

from __future__ import annotations

from typing import Any

from lehr_trainer.experiments.case import Case, config
from lehr_trainer.experiments.plan import BenchPlan, rows_against
from lehr_trainer.experiments.table import Column, ExperimentTable

_OPTIMIZERS: dict[str, dict[str, Any]] = {
    "adamw, for each tensor list": {"name": "adamw", "fused": False, "lr": 1e-3},
    "adamw, fused": {"name": "adamw", "fused": True, "lr": 1e-3},
    "adamw8bit, bitsandbytes": {"name": "adamw8bit", "library": "bitsandbytes", "lr": 1e-3},
    "adamw8bit, torchao": {"name": "adamw8bit", "library": "torchao", "lr": 1e-3},
    "muon": {"name": "muon", "lr": 0.02, "embedding_lr": 1e-3},
}


def run(plan: BenchPlan) -> ExperimentTable:
    changes: dict[str, Any] = {}
    if plan.on_cuda:
        changes = {
            "precision": {"compute": "bf16", "tf32": True},
            "activation_checkpointing": {"policy": "block"},
            "compile": {"scope": "block"},
        }
    cases = [
        Case(
            name,
            "training",
            config(plan.size, plan.device, optimizer=optimizer, **changes),
            batches="loader",
            skip=plan.no_compiling if optimizer.get("library") == "torchao" else "",
        )
        for name, optimizer in _OPTIMIZERS.items()
    ]
    outcomes = plan.measure(cases)
    rows = rows_against(plan, outcomes, outcomes[1])
    for row, outcome in zip(rows, outcomes, strict=True):
        state = outcome.fact("state_bytes")
        row.values["state"] = None if state is None else state / 1e6
    return ExperimentTable(
        experiment="optimizers",
        size=plan.size.name,
        title=f"Optimizers at [{plan.size.sequences}, {plan.size.sequence_length}]",
        machine=plan.machine(),
        columns=(
            *plan.step_columns(),
            Column("state", "state", "MB", "bytes of the optimizer's tensors", 2),
            Column(
                "delta_time",
                "time against fused",
                "%",
                f"{plan.cost_name} of a whole step / fused AdamW's - 1",
                1,
            ),
            plan.loss_column(outcomes),
        ),
        rows=rows,
        notes=("All at the rates in the spec: AdamW's 1e-3, Muon's 0.02. No rate was tuned.",),
    )
