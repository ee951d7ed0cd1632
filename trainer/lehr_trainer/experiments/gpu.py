"""The whole GPU bench in one command: it resumes, survives failed rows, and keeps a budget.

Each row's result is a file of its own in the folder, so that a further call measures only missing
rows. The table goes to ``results.md`` there, for docs/benchmarks.md.
"""

from __future__ import annotations

import json
import math
import time
from collections.abc import Iterator
from dataclasses import replace
from difflib import get_close_matches
from pathlib import Path
from typing import Any

import torch

from lehr_trainer.configs.train import TrainConfig
from lehr_trainer.errors import BadConfig
from lehr_trainer.experiments.best_spec import advice
from lehr_trainer.experiments.case import Case
from lehr_trainer.experiments.gpu_rows import SECTIONS, GpuRow, Hardware, rows
from lehr_trainer.experiments.plan import BenchPlan
from lehr_trainer.experiments.runner import NO_ANSWER, RowOutcome
from lehr_trainer.experiments.table import Column, ExperimentTable, Row, ratio
from lehr_trainer.planning.memory import training_memory

TARGET_MFU = 55.0
"""Percent of the dense bf16 peak."""
TARGET_FP8 = 1.1
TARGET_GB = 75.0


def run(plan: BenchPlan) -> ExperimentTable:
    folder = plan.out or Path(f"bench-{plan.device}-{plan.size.name}")
    folder.mkdir(parents=True, exist_ok=True)
    unknown = [name for name in plan.only if name not in SECTIONS]
    if unknown:
        near = get_close_matches(unknown[0], SECTIONS, 1)
        hint = f" Did you mean {near[0]}?" if near else ""
        raise BadConfig(
            f"there is no section {unknown[0]!r}.{hint} There are: {', '.join(SECTIONS)}"
        )
    selected_rows = [
        row
        for row in rows(plan.size, hardware(plan.device), eager=plan.eager)
        if not plan.only or row.section in plan.only
    ]
    machine = plan.machine()
    began = time.monotonic()
    left = done = 0
    for row in selected_rows:
        known = _read(folder, row, machine)
        # A row that failed is measured again: the reason may have been mended.
        if row.case.skip or (known is not None and not known["failed"]):
            continue
        time_left = math.inf
        if plan.budget_s is not None:
            time_left = plan.budget_s - (time.monotonic() - began)
        outcome = _measured(plan, row, time_left) if time_left > 0 else None
        # Cut off by the budget: it gets another call, unless it had the whole budget already.
        cut_off = outcome is not None and outcome.error.startswith(NO_ANSWER) and done
        if outcome is None or cut_off:
            left += 1
            continue
        done += 1
        _write(folder, row, machine, outcome)
    table = _table(plan, selected_rows, folder, machine, left)
    (folder / "results.md").write_text(table.markdown() + "\n")
    plan.log(f"results: {folder / 'results.md'}; {left} rows are left for another call")
    return table


def hardware(device: str) -> Hardware:
    """Return what this machine offers. A CPU stands for two GPUs of any memory, in a rehearsal."""
    if device != "cuda":
        return Hardware(device, gpus=2)
    memory = torch.cuda.get_device_properties(0).total_memory
    return Hardware(device, torch.cuda.device_count(), memory / 1e9)


def _measured(plan: BenchPlan, row: GpuRow, time_left: float) -> RowOutcome:
    patience = min(plan.timeout_s, time_left)
    plan.log(row.key)
    tokens = row.case.config["batch"]["sequences"] * row.case.config["batch"]["sequence_length"]
    # About equally many tokens for every row: small steps get more of them per turn.
    steps = max(plan.size.steps, plan.size.steps * plan.size.tokens // max(1, tokens) // 2)
    size = replace(plan.size, steps=min(20, steps))
    return replace(plan, size=size, timeout_s=patience).measure([row.case])[0]


# --- results that stay --------------------------------------------------------------------------


def _path(folder: Path, row: GpuRow) -> Path:
    plain = "".join(c if c.isalnum() else "-" for c in row.key)
    return folder / f"{plain}.json"


def _read(folder: Path, row: GpuRow, machine: dict[str, Any]) -> dict[str, Any] | None:
    """Load the row's result, if it has this very configuration, device and torch version."""
    try:
        found: dict[str, Any] = json.loads(_path(folder, row).read_text())
    except (OSError, ValueError):
        return None
    same = found["config"] == row.case.config and found["machine"] == _identity(machine)
    return found if same and "failed" in found else None


def _write(folder: Path, row: GpuRow, machine: dict[str, Any], outcome: RowOutcome) -> None:
    content = {
        "key": row.key,
        "config": row.case.config,
        "machine": _identity(machine),
        "seconds": outcome.seconds,
        "cpu_seconds": outcome.cpu_seconds,
        "setup_s": outcome.setup_s,
        "facts": outcome.facts,
        "error": outcome.error,
        "failed": outcome.failed,
    }
    path = _path(folder, row)
    temporary = path.with_suffix(".tmp")
    temporary.write_text(json.dumps(content))
    temporary.replace(path)


def _identity(machine: dict[str, Any]) -> dict[str, Any]:
    return {key: value for key, value in machine.items() if key != "load"}


def _outcome(row: GpuRow, found: dict[str, Any]) -> RowOutcome:
    names = ("seconds", "cpu_seconds", "setup_s", "facts", "error", "failed")
    return RowOutcome(row.case, **{name: found[name] for name in names})


# --- the table ----------------------------------------------------------------------------------


def _table(
    plan: BenchPlan, selected_rows: list[GpuRow], folder: Path, machine: dict[str, Any], left: int
) -> ExperimentTable:
    lines: list[Row] = []
    figures: dict[str, dict[str, float | str | None]] = {}
    for section, title in SECTIONS.items():
        members = [row for row in selected_rows if row.section == section]
        if not members:
            continue
        lines.append(Row(title, {}))
        for row in members:
            if row.case.skip:
                lines.append(Row(row.case.name, {}, row.case.skip))
                continue
            planned = {"planned": planned_bytes(row.case) / (1e9 if plan.on_cuda else 1e6)}
            found = _read(folder, row, machine)
            if found is None:
                lines.append(Row(row.case.name, {**planned}, "not measured yet"))
                continue
            outcome = _outcome(row, found)
            values = {**plan.step_values(outcome), **planned}
            losses = outcome.fact("losses")
            values["loss"] = losses[-1] if losses else None
            values["setup"] = outcome.setup_s
            figures[row.key] = values
            lines.append(Row(row.case.name, values, outcome.note, outcome.failed))
    return ExperimentTable(
        experiment="gpu",
        size=plan.size.name,
        title=f"GPU bench at sequences of {plan.size.sequence_length}",
        machine=machine,
        columns=(
            *_beside_memory(plan),
            Column("setup", "first steps", "s", "the model and two steps, compilation included", 1),
            Column("loss", "loss", "nats", "of the last step, on random tokens", 3),
        ),
        rows=tuple(lines),
        notes=(
            *verdicts(figures, on_cuda=plan.on_cuda),
            *advice(figures, {row.key: row.case for row in selected_rows}),
            *([f"{left} rows are left."] * (left > 0)),
        ),
    )


def _beside_memory(plan: BenchPlan) -> Iterator[Column]:
    """Yield the columns of every training, with the planned memory after the measured."""
    for column in plan.step_columns():
        yield column
        if column.key == "memory":
            yield Column(
                "planned",
                "planned",
                column.unit,
                "lehr plan's formula for the phases of a step, without evaluation, context and "
                "fragmentation",
                column.digits,
            )


def planned_bytes(case: Case) -> float:
    """Return the most bytes of a step by the plan's formula, comparable with a measured peak."""
    phases = training_memory(TrainConfig.model_validate(case.config), case.ranks).phases
    return float(max(m.total for name, m in phases.items() if name != "evaluation"))


def verdicts(figures: dict[str, dict[str, float | str | None]], *, on_cuda: bool) -> list[str]:
    """Return whether the targets are met, from measured figures only."""
    if not on_cuda:
        return ["A test run on a CPU: the targets are for a GPU and are not judged."]
    bf16 = {k: v for k, v in figures.items() if k.startswith("target/bf16") and v.get("step")}
    fitting = {k: v for k, v in bf16.items() if _number(v, "reserved") < TARGET_GB}
    if not fitting:
        return [f"bf16: nothing measured under {TARGET_GB:.0f} GB yet."]
    best = max(fitting, key=lambda key: _number(fitting[key], "rate"))
    reached = fitting[best].get("mfu")
    sentences = [
        f"bf16, best under {TARGET_GB:.0f} GB reserved: {best.removeprefix('target/')}; MFU "
        + (
            f"{reached:.1f} % (target {TARGET_MFU:.0f} %)"
            if isinstance(reached, float)
            else "unknown: the GPU is not in the table of peaks"
        )
    ]
    pairs = {
        key: ratio(_number(figures[key], "rate"), _number(bf16[twin], "rate"))
        for key in figures
        if key.startswith("target/FP8")
        and (twin := key.replace("target/FP8", "target/bf16")) in bf16
        and figures[key].get("step")
    }
    gains = {key: gain for key, gain in pairs.items() if gain is not None}
    if gains:
        key = max(gains, key=lambda name: gains[name])
        sentences.append(
            f"FP8 over the same in bf16, best: {gains[key]:.2f}x (target {TARGET_FP8}x), "
            + key.removeprefix("target/FP8, ")
        )
    return sentences


def _number(values: dict[str, float | str | None], key: str) -> float:
    """Return a figure; an unknown one never makes a row count as small or fast."""
    value = values.get(key)
    if isinstance(value, int | float):
        return float(value)
    return math.inf if key == "reserved" else 0.0
