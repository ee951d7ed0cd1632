"""The ladder of optimizations, added one by one at the same tokens.

The first rungs are those of the GPT-2 134M study (docs/reference-runs.md), in its order. Then come
fused AdamW, the chunked loss, a larger micro-batch, CUDA graphs and FP8. The tokens of a step never
change: the first rungs accumulate over four micro-batches.
"""

from __future__ import annotations

from typing import Any

from lehr_trainer.experiments import hardware_checks as checks
from lehr_trainer.experiments.case import Batches, Case, config
from lehr_trainer.experiments.plan import BenchPlan, rows_against
from lehr_trainer.experiments.table import Column, ExperimentTable, Row, ratio


def run(plan: BenchPlan) -> ExperimentTable:
    cases = rungs(plan)
    outcomes = plan.measure(cases)
    baseline = outcomes[0]
    rows = []
    before = plan.cost(baseline)
    for row, outcome in zip(rows_against(plan, outcomes, baseline), outcomes, strict=True):
        gain = ratio(before, plan.cost(outcome))
        before = plan.cost(outcome) or before
        rows.append(Row(row.name, {**row.values, "gain": gain}, row.note))
    return ExperimentTable(
        experiment="ladder",
        size=plan.size.name,
        title=f"The ladder at [{plan.size.sequences}, {plan.size.sequence_length}]",
        machine=plan.machine(),
        columns=(
            *plan.step_columns(),
            Column("gain", "this rung", "x", f"{plan.cost_name} of the rung before / its own"),
            Column("speedup", "all so far", "x", f"{plan.cost_name} of the first rung / its own"),
            plan.loss_column(outcomes),
        ),
        rows=tuple(rows),
        notes=(
            "A rung that does not apply here is left out of those above it.",
            "The naive rungs read the same windows as the loader, one slice at a time.",
        ),
    )


def rungs(plan: BenchPlan) -> list[Case]:
    """List the rungs: each adds to all before it, as far as they apply on this machine."""
    device, size = plan.device, plan.size
    micro_batch = max(1, size.sequences // 4)
    sofar: dict[str, Any] = {
        "batch": {
            "sequences": size.sequences,
            "sequence_length": size.sequence_length,
            "micro_batch": micro_batch,
        },
        "attention": {"backend": "math"},
        "loss": {"name": "standard"},
        "optimizer": {"name": "adamw", "fused": False},
    }
    batches: Batches = "naive_memmap"
    cases = [Case("naive, memmap, fp32, eager", "training", config(size, device, **sofar), batches)]

    def climb(name: str, change: dict[str, Any], why_not: str = "", **data: Batches) -> None:
        nonlocal batches
        if why_not:
            cases.append(Case(name, "training", {}, skip=why_not))
            return
        for key, value in change.items():
            sofar[key] = {**sofar.get(key, {}), **value}
        batches = data.get("batches", batches)
        cases.append(Case(name, "training", config(size, device, **sofar), batches))

    climb("+ tokens in memory", {}, batches="naive_preload")
    climb("+ np.stack of slices", {}, batches="stack")
    climb("+ the loader, ahead of time", {}, batches="loader")
    climb("+ torch.compile by block", {"compile": {"scope": "block"}}, plan.no_compiling)
    climb("+ TF32", {"precision": {"tf32": True}}, checks.no_tf32(device))
    climb("+ bf16", {"precision": {"compute": "bf16"}}, checks.no_fast_bf16(device))
    climb("+ fused attention", {"attention": {"backend": "auto"}})
    climb("+ fused AdamW", {"optimizer": {"fused": True}})
    climb("+ chunked loss", {"loss": {"name": "chunked"}})
    climb(
        f"+ micro-batch {micro_batch} to {size.sequences}",
        {"batch": {"micro_batch": size.sequences}},
        "" if size.sequences > micro_batch else "one sequence cannot be split",
    )
    climb(
        "+ CUDA graphs",
        {"compile": {"mode": "reduce-overhead"}},
        plan.no_compiling or checks.no_cuda_graphs(device),
    )
    climb("+ FP8", {"precision": {"fp8": {"recipe": "tensorwise"}}}, checks.no_fp8(device))
    return cases
