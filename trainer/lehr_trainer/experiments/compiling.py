"""Eager against each way of compiling: time, first steps, kernels."""

from __future__ import annotations

from typing import Any

from lehr_trainer.experiments import hardware_checks as checks
from lehr_trainer.experiments.case import Case, config
from lehr_trainer.experiments.launches import ON_CPU, ON_CUDA
from lehr_trainer.experiments.plan import BenchPlan, rows_against
from lehr_trainer.experiments.runner import WARM_UP_STEPS
from lehr_trainer.experiments.table import Column, ExperimentTable


def run(plan: BenchPlan) -> ExperimentTable:
    graphs = plan.no_compiling or checks.no_cuda_graphs(plan.device)
    ways: list[tuple[str, dict[str, Any], str]] = [
        ("eager", {"scope": "none"}, ""),
        ("block, default", {"scope": "block"}, plan.no_compiling),
        ("model, default", {"scope": "model"}, plan.no_compiling),
        ("block, reduce-overhead", {"scope": "block", "mode": "reduce-overhead"}, graphs),
        ("model, reduce-overhead", {"scope": "model", "mode": "reduce-overhead"}, graphs),
        (
            "block, max-autotune-no-cudagraphs",
            {"scope": "block", "mode": "max-autotune-no-cudagraphs"},
            plan.no_compiling if plan.on_cuda else "autotuning chooses among a GPU's kernels",
        ),
    ]
    cases = [_case(plan, *way) for way in ways]
    outcomes = plan.measure(cases, launches=True)
    found = rows_against(plan, outcomes, outcomes[0], kernels="kernels", launches="launches")
    for row, outcome in zip(found, outcomes, strict=True):
        row.values["setup"] = None if outcome.error else outcome.setup_s
    return ExperimentTable(
        experiment="compile",
        size=plan.size.name,
        title=f"torch.compile at [{plan.size.sequences}, {plan.size.sequence_length}]",
        machine=plan.machine(),
        columns=(
            *plan.step_columns(),
            Column("speedup", "against eager", "x", f"eager's {plan.cost_name} / its own"),
            Column("kernels", "kernels", "", ON_CUDA if plan.on_cuda else ON_CPU, 0),
            Column("launches", "launches", "", "the host's launch calls in that step", 0),
            Column(
                "setup",
                "first steps",
                "s",
                f"building the model and its first {WARM_UP_STEPS} steps, compilation included "
                "(from inductor's cache if it has it)",
                1,
            ),
            plan.loss_column(outcomes),
        ),
        rows=found,
    )


def _case(plan: BenchPlan, name: str, compile_: dict[str, Any], why_not: str) -> Case:
    if why_not:
        return Case(name, "training", {}, skip=why_not)
    changes: dict[str, Any] = {"compile": compile_}
    if plan.on_cuda:
        changes["precision"] = {"compute": "bf16", "tf32": True}
        changes["activation_checkpointing"] = {"policy": "block"}
    return Case(name, "training", config(plan.size, plan.device, **changes))
