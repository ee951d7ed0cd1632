"""Every cross entropy: against float64, and its memory and time."""

from __future__ import annotations

from typing import Any

from lehr_trainer.configs.loss import LOSSES
from lehr_trainer.experiments.case import Case, config
from lehr_trainer.experiments.hardware_checks import no_fast_bf16
from lehr_trainer.experiments.plan import BenchPlan, rows_against
from lehr_trainer.experiments.table import Column, ExperimentTable, Row

_HEAD_ALONE = "norm of the difference from float64's gradient / the norm of that"


def run(plan: BenchPlan) -> ExperimentTable:
    size = plan.size
    # A laptop's chunks must be smaller than its logits, or the table would show nothing.
    chunk_mb = 1024 if plan.on_cuda else max(1, 4 * size.tokens * size.model["vocab_size"] >> 23)
    cases = []
    for name in LOSSES:
        loss: dict[str, Any] = {"name": name}
        if name == "chunked":
            loss["chunk_mb"] = chunk_mb
        precision = {"compute": "bf16", "tf32": False}
        note = {
            "chunked": f"in chunks of {chunk_mb} MiB of logits",
            "torch_chunked": "on fp32 operands always",
            "in_autocast": "for comparison only: loss inside autocast",
            "bf16_softmax": "for comparison only: loss in bf16",
        }.get(name, "")
        values = config(size, plan.device, loss=loss, precision=precision)
        slow = LOSSES[name].native_bf16 and bool(no_fast_bf16(plan.device))
        note += "; bf16 emulated, one step" * slow
        cases.append(Case(name, "loss", values, note=note, slow=slow))
    outcomes = plan.measure(cases)
    baseline = next(o for o in outcomes if o.case.name == "standard")
    rows = []
    for row, outcome in zip(rows_against(plan, outcomes, baseline), outcomes, strict=True):
        errors = {
            key: None if (value := outcome.fact(key)) is None else 1e6 * value
            for key in ("value_error", "hidden_error", "weight_error")
        }
        rows.append(Row(row.name, {**row.values, **errors}, row.note))
    return ExperimentTable(
        experiment="losses",
        size=size.name,
        title=f"The head's cross entropy on {size.tokens:,} rows of {size.model['hidden_size']:,} "
        f"against {size.model['vocab_size']:,} tokens, bf16 operands",
        machine=plan.machine(),
        columns=(
            Column("value_error", "value off", "1e-6 nats", "|loss - float64's|, same operands", 3),
            Column("hidden_error", "gradient of hidden", "1e-6", _HEAD_ALONE, 1),
            Column("weight_error", "gradient of head", "1e-6", _HEAD_ALONE, 1),
            *(column for column in plan.step_columns() if column.key not in {"rate", "mfu"}),
            Column(
                "delta_time", "time against standard", "%", f"{plan.cost_name} / standard's - 1", 1
            ),
            Column("delta_memory", "memory against standard", "%", "likewise", 1),
        ),
        rows=tuple(rows),
        notes=(
            "A step is the loss and both its gradients, of the head alone.",
            "Errors are over the first 2,048 rows at most.",
        ),
    )
