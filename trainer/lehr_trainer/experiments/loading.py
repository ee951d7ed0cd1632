"""Batch making: a Python loop, ``np.stack``, and the loader; and the wait in a training."""

from __future__ import annotations

from typing import Any

from lehr_trainer.experiments.case import Batches, Case, config
from lehr_trainer.experiments.plan import BenchPlan
from lehr_trainer.experiments.table import Column, ExperimentTable, Row, ratio

_WAYS: list[tuple[str, Batches, dict[str, Any]]] = [
    ("torch.tensor of a list of slices, memmap", "naive_memmap", {}),
    ("torch.tensor of a list of slices, memory", "naive_preload", {}),
    ("np.stack of slices, memory", "stack", {}),
    ("the loader, memmap, no thread", "loader", {"threads": 0, "loading": "memmap"}),
    ("the loader, memory, no thread", "loader", {"threads": 0, "loading": "preload"}),
    ("the loader, memory, one thread", "loader", {"threads": 1, "loading": "preload"}),
]


def run(plan: BenchPlan) -> ExperimentTable:
    size = plan.size
    values = config(size, "cpu")
    cases = [Case(name, "batches", values, kind, extra) for name, kind, extra in _WAYS]
    outcomes = plan.measure(cases)
    rows = []
    for outcome in outcomes:
        step, wait = outcome.step_s, outcome.fact("wait_s")
        figures: dict[str, float | str | None] = {
            "batch": None if step is None else 1e3 * step,
            "rate": None if step is None else size.tokens / step / 1e6,
            "speedup": ratio(outcomes[0].step_s, step),
            "over_stack": ratio(outcomes[2].step_s, step),
            "wait": None if wait is None else 1e6 * wait,
        }
        rows.append(Row(outcome.case.name, figures, outcome.note))
    turns = f"median of {plan.size.turns} turns of {plan.size.steps} batches; rows take turns"
    return ExperimentTable(
        experiment="loader",
        size=plan.size.name,
        title=f"Batches of [{size.sequences}, {size.sequence_length}]",
        machine=plan.machine(),
        columns=(
            Column("batch", "batch", "ms", turns, 3),
            Column("rate", "tokens/s", "1e6", "tokens of a batch / its time", 1),
            Column("speedup", "against the first row", "x", "its time / this one's", 1),
            Column("over_stack", "against np.stack", "x", "likewise", 1),
            Column("wait", "wait", "us", "median beside matrix products of 512 x 512", 1),
        ),
        rows=tuple(rows),
        notes=("The loader makes inputs and targets in int64, the others one tensor.",),
    )
