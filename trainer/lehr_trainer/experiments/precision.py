"""fp32, TF32, bf16, fp16 and the FP8 recipes."""

from __future__ import annotations

from typing import Any

from lehr_trainer.experiments import hardware_checks as checks
from lehr_trainer.experiments.case import Case, config
from lehr_trainer.experiments.plan import BenchPlan, rows_against
from lehr_trainer.experiments.table import Column, ExperimentTable


def run(plan: BenchPlan) -> ExperimentTable:
    cases = [_case(plan, *each) for each in _precisions(plan.device)]
    outcomes = plan.measure(cases)
    return ExperimentTable(
        experiment="precision",
        size=plan.size.name,
        title=f"Precision at [{plan.size.sequences}, {plan.size.sequence_length}]",
        machine=plan.machine(),
        columns=(
            *plan.step_columns(),
            Column("speedup", "against fp32", "x", f"fp32's {plan.cost_name} / its own"),
            plan.loss_column(outcomes),
        ),
        rows=rows_against(plan, outcomes, outcomes[0]),
        notes=(
            "FP8: the blocks' linears; the rest is bf16. MFU of FP8 rows is against bf16's peak.",
        ),
    )


def _precisions(device: str) -> list[tuple[str, dict[str, Any], str, str]]:
    """Yield name, config, reason to skip, note."""
    cuda = device == "cuda"
    slow = checks.no_fast_bf16(device)
    emulated = "" if cuda else "emulated, for its loss alone: no FP8 arithmetic here"

    def fp8(recipe: str) -> dict[str, Any]:
        return {"compute": "bf16", "tf32": True, "fp8": {"recipe": recipe, "emulate": not cuda}}

    return [
        ("fp32", {"compute": "fp32", "tf32": False}, "", ""),
        ("tf32", {"compute": "fp32", "tf32": True}, checks.no_tf32(device), ""),
        ("bf16", {"compute": "bf16", "tf32": True}, "", slow),
        ("fp16", {"compute": "fp16", "tf32": True}, "", "" if cuda else "emulated"),
        ("fp8 tensorwise", fp8("tensorwise"), checks.no_fp8(device) if cuda else "", emulated),
        (
            "fp8 rowwise",
            fp8("rowwise"),
            checks.no_fp8(device, rowwise=True) if cuda else "",
            emulated,
        ),
        (
            "fp8 delayed",
            {**fp8("te_delayed"), "fp8": {"recipe": "te_delayed"}},
            checks.no_fp8(device),
            "Transformer Engine",
        ),
    ]


def _case(plan: BenchPlan, name: str, precision: dict[str, Any], why_not: str, note: str) -> Case:
    if why_not:
        return Case(name, "training", {}, skip=why_not)
    changes: dict[str, Any] = {"precision": precision}
    if plan.on_cuda:
        delayed = precision.get("fp8", {}).get("recipe") == "te_delayed"
        changes["compile"] = {"scope": "none" if delayed else "block"}
        changes["activation_checkpointing"] = {"policy": "block"}
    slow = precision["compute"] != "fp32" and bool(checks.no_fast_bf16(plan.device))
    values = config(plan.size, plan.device, **changes)
    return Case(name, "training", values, note=note, slow=slow)
