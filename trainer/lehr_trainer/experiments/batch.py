"""Batch size against memory and speed, and the largest batch that fits."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import torch

from lehr_trainer.configs.train import TrainConfig
from lehr_trainer.errors import BadConfig
from lehr_trainer.experiments.case import Case, config
from lehr_trainer.experiments.plan import BenchPlan
from lehr_trainer.experiments.runner import RowOutcome
from lehr_trainer.experiments.table import Column, ExperimentTable, Row
from lehr_trainer.planning.memory import training_memory

_CPU_BUDGET_GB = 1.0
_MOST = 4096


def run(plan: BenchPlan) -> ExperimentTable:
    budget = budget_bytes(plan)
    measured: dict[int, RowOutcome] = {}

    def fits(sequences: int) -> bool:
        outcome = _measured(plan, sequences)
        measured[sequences] = outcome
        taken = outcome.fact("reserved_bytes") or outcome.fact("memory_bytes")
        if outcome.error and "memory" not in outcome.error:
            raise BadConfig(f"a batch of {sequences} sequences: {outcome.error}")
        return not outcome.error and taken is not None and taken <= budget

    largest = largest_that_fits(fits)
    rows = tuple(_row(plan, measured[count], budget) for count in sorted(measured))
    return ExperimentTable(
        experiment="batch",
        size=plan.size.name,
        title=f"Sequences of {plan.size.sequence_length} in a forward pass, until "
        f"{budget / 1e9:.3g} GB are taken",
        machine=plan.machine(),
        columns=(
            *plan.step_columns(),
            Column("planned", "planned", "GB" if plan.on_cuda else "MB", "lehr plan's peak", 1),
        ),
        rows=rows,
        notes=(
            f"The largest batch that fits: {largest} sequences."
            if largest
            else "Not even one sequence fits.",
            "Found by doubling, then by halving the gap to within an eighth.",
        ),
    )


def largest_that_fits(fits: Callable[[int], bool]) -> int:
    """Find the largest count for which ``fits`` holds, within an eighth; 0 if none does."""
    good, bad = 0, 1
    while bad <= _MOST and fits(bad):
        good, bad = bad, bad * 2
    while good and bad <= _MOST and bad - good > max(1, good // 8):
        middle = (good + bad) // 2
        good, bad = (middle, bad) if fits(middle) else (good, middle)
    return good


def budget_bytes(plan: BenchPlan) -> float:
    if plan.memory_gb is not None:
        return plan.memory_gb * 1e9
    if plan.on_cuda:
        return float(torch.cuda.get_device_properties(0).total_memory)
    return _CPU_BUDGET_GB * 1e9


def _measured(plan: BenchPlan, sequences: int) -> RowOutcome:
    changes: dict[str, Any] = {}
    if plan.on_cuda:
        changes = {"precision": {"compute": "bf16", "tf32": True}}
    size = plan.size.with_batch(sequences, None)
    case = Case(str(sequences), "training", config(size, plan.device, **changes))
    few = replace(plan, size=replace(size, turns=1, steps=2))
    return few.measure([case])[0]


def _row(plan: BenchPlan, outcome: RowOutcome, budget: float) -> Row:
    values = plan.step_values(outcome)
    unit = 1e9 if plan.on_cuda else 1e6
    planned = training_memory(TrainConfig.model_validate(outcome.case.config)).peak
    values["planned"] = planned / unit
    taken = outcome.fact("reserved_bytes") or outcome.fact("memory_bytes") or 0
    return Row(outcome.case.name, values, outcome.error or ("too much" if taken > budget else ""))
