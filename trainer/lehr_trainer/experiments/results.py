"""Measure the rows of a table, keep their results, and make the table of all that is known.

With a folder each row's result is a file there, so that a further call measures only missing rows.
The table goes to its ``results.md``, for docs/benchmarks.md.
"""

from __future__ import annotations

import json
import math
import os
import platform
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from itertools import groupby
from pathlib import Path
from typing import Any

import torch

from lehr_trainer.callbacks import LogFn
from lehr_trainer.configs.train import TrainConfig
from lehr_trainer.experiments import TABLES, memory
from lehr_trainer.experiments.best_spec import advice
from lehr_trainer.experiments.rows import BenchRow
from lehr_trainer.experiments.runner import NO_ANSWER, RowOutcome, measure
from lehr_trainer.experiments.sizes import Size
from lehr_trainer.experiments.table import BenchTable, Column, TableRow, change, ratio
from lehr_trainer.experiments.training import WARM_UP_STEPS
from lehr_trainer.planning.counts import flops_per_token
from lehr_trainer.planning.hardware import peak_flops
from lehr_trainer.planning.memory import training_memory
from lehr_trainer.runtime.precision import Precision


@dataclass(frozen=True)
class Bench:
    """How to measure, and where results are kept."""

    size: Size
    device: str
    """cpu or cuda."""
    log: LogFn
    timeout_s: float = 600.0
    """For one answer of a row."""
    folder: Path | None = None
    """Keeps results between calls."""
    budget_s: float = math.inf
    """Seconds after which no further row is started."""

    @property
    def on_cuda(self) -> bool:
        return self.device == "cuda"

    @property
    def unit(self) -> tuple[str, float]:
        return ("GB", 1e9) if self.on_cuda else ("MB", 1e6)

    def machine(self) -> dict[str, Any]:
        """Describe the machine that the figures belong to."""
        facts: dict[str, Any] = {"torch": torch.__version__, "python": platform.python_version()}
        if self.on_cuda:
            return {**facts, "gpu": torch.cuda.get_device_name(), "cuda": torch.version.cuda}
        cores = len(os.sched_getaffinity(0))
        return {**facts, "cpu": _cpu_name(), "cores": cores, "threads": torch.get_num_threads()}


def run(bench: Bench, name: str, rows: Sequence[BenchRow]) -> BenchTable:
    """Measure the rows that have no result yet, as far as the budget allows; return the table."""
    if bench.folder is not None:
        bench.folder.mkdir(parents=True, exist_ok=True)
    machine, load = bench.machine(), os.getloadavg()[0]
    outcomes = {row.key: _read(bench.folder, row, machine) for row in rows if not row.skip}
    # A row that failed is measured again: the reason may have been mended.
    missing = [row for row in rows if _missing(row, outcomes)]
    began, measured = time.monotonic(), 0
    for _, group in groupby(missing, lambda row: row.key if bench.on_cuda else row.table):
        together = list(group)
        time_left = bench.budget_s - (time.monotonic() - began)
        if time_left <= 0:
            break
        timeout_s = min(bench.timeout_s, time_left)
        steps = _steps(bench.size, together[0])
        log, turns = bench.log, bench.size.turns
        done = measure(together, turns=turns, steps=steps, log=log, timeout_s=timeout_s)
        for row, outcome in zip(together, done, strict=True):
            # Cut off by the budget: it gets another call, unless it had the whole budget already.
            if measured and timeout_s < bench.timeout_s and outcome.error.startswith(NO_ANSWER):
                continue
            outcomes[row.key] = outcome
            _write(bench.folder, row, machine, outcome)
        measured += 1
    table = _table(bench, name, rows, outcomes, {**machine, "load": round(load, 1)})
    if bench.folder is not None:
        (bench.folder / "results.md").write_text(table.markdown() + "\n")
        bench.log(f"results: {bench.folder / 'results.md'}")
    return table


def _missing(row: BenchRow, outcomes: dict[str, RowOutcome | None]) -> bool:
    outcome = outcomes.get(row.key)
    return not row.skip and (outcome is None or outcome.failed)


def _steps(size: Size, row: BenchRow) -> int:
    """Return the steps of a turn: small ones get more, for about equally many tokens."""
    tokens = _tokens(row)
    return min(20, max(size.steps, size.steps * size.tokens // tokens // 2))


# --- results that stay --------------------------------------------------------------------------


def _path(folder: Path, row: BenchRow) -> Path:
    plain = "".join(c if c.isalnum() else "-" for c in row.key)
    return folder / f"{plain}.json"


def _read(folder: Path | None, row: BenchRow, machine: dict[str, Any]) -> RowOutcome | None:
    """Load the row's result, if it has this very configuration, device and torch version."""
    if folder is None:
        return None
    try:
        known: dict[str, Any] = json.loads(_path(folder, row).read_text())
        same = known["config"] == row.config and known["machine"] == machine
        return RowOutcome(**known["outcome"]) if same else None
    except (OSError, ValueError, KeyError, TypeError):
        return None


def _write(
    folder: Path | None, row: BenchRow, machine: dict[str, Any], outcome: RowOutcome
) -> None:
    if folder is None:
        return
    content = {"config": row.config, "machine": machine, "outcome": asdict(outcome)}
    path = _path(folder, row)
    temporary = path.with_suffix(".tmp")
    temporary.write_text(json.dumps(content))
    temporary.replace(path)


# --- the table ----------------------------------------------------------------------------------


def _table(
    bench: Bench,
    name: str,
    rows: Sequence[BenchRow],
    outcomes: dict[str, RowOutcome | None],
    machine: dict[str, Any],
) -> BenchTable:
    lines: list[TableRow] = []
    mfu: dict[str, float] = {}
    for table, group in groupby(rows, lambda row: row.table):
        if name == "gpu":
            lines.append(TableRow(f"{table}: {TABLES[table]}", {}))
        first: dict[str, float | None] = {}
        for row in group:
            outcome = outcomes.get(row.key)
            values = _values(bench, row, outcome)
            first = first or ({**values} if values.get("cost") else {})
            values["speedup"] = ratio(first.get("cost"), values.pop("cost", None))
            held = "reserved" if bench.on_cuda else "memory"
            values["saved"] = change(values.get(held), first.get(held))
            note = row.skip or (outcome.error if outcome else "not measured yet")
            failed = outcome is not None and outcome.failed
            lines.append(TableRow(row.name, values, note, failed))
            if (reached := values.get("mfu")) is not None:
                mfu[row.key] = reached
    return BenchTable(
        experiment=name,
        size=bench.size.name,
        title=f"{name}: {TABLES[name]}",
        machine=machine,
        columns=_columns(bench),
        rows=tuple(lines),
        notes=tuple(advice(mfu, {row.key: row for row in rows})),
    )


def _columns(bench: Bench) -> tuple[Column, ...]:
    unit, _ = bench.unit
    turns = f"median of {bench.size.turns} turns, by the clock; rows take turns"
    of_step: tuple[Column, ...] = (
        Column("step", "step", "ms", turns, 1),
        Column("cpu", "processor", "ms", "the same, processor time over all threads", 1),
        Column("rate", "tokens/s", "", "tokens of a step / its time", 0),
        Column("memory", "memory", unit, memory.ON_CPU, 1),
    )
    cost, held = "processor time", "memory"
    if bench.on_cuda:
        turns = f"median of {bench.size.turns} turns, by the clock; one row after the other"
        of_step = (
            Column("step", "step", "ms", turns, 1),
            Column("mfu", "MFU", "%", "tokens/s x FLOPs a token / the dense peak", 1),
            Column("rate", "tokens/s", "", "tokens of a step / its time", 0),
            Column("memory", "peak", unit, memory.ON_CUDA),
            Column("reserved", "reserved", unit, "torch.cuda.max_memory_reserved"),
        )
        cost, held = "step", "reserved memory"
    return (
        *of_step,
        Column(
            "planned",
            "planned",
            unit,
            "lehr plan's formula for the phases of a step, without evaluation, context and "
            "fragmentation",
            of_step[-1].digits,
        ),
        Column("speedup", "speed-up", "x", f"{cost} of the table's first row / its own"),
        Column("saved", "memory change", "%", f"{held} / that of the first row - 1", 1),
        Column(
            "setup",
            "first steps",
            "s",
            f"building the model and its first {WARM_UP_STEPS} steps, compilation included",
            1,
        ),
        Column("loss", "loss", "nats", "of the last step, on random tokens", 3),
    )


def _values(bench: Bench, row: BenchRow, outcome: RowOutcome | None) -> dict[str, float | None]:
    """Return the row's figures, and its ``cost``: the seconds by which rows are compared.

    On a shared CPU it is processor time, which other work disturbs least; on a GPU the clock.
    """
    if row.skip:
        return {}
    _, unit = bench.unit
    planned: dict[str, float | None] = {"planned": planned_bytes(row) / unit}
    if outcome is None or outcome.error or outcome.step_s is None or outcome.cpu_s is None:
        return planned
    rate = _tokens(row) / outcome.step_s
    taken = {name: outcome.facts.get(f"{name}_bytes") for name in ("memory", "reserved")}
    return {
        "step": 1e3 * outcome.step_s,
        "cpu": None if bench.on_cuda else 1e3 * outcome.cpu_s,
        "mfu": _mfu(row, rate / row.ranks) if bench.on_cuda else None,
        "rate": rate,
        **{name: None if size is None else size / unit for name, size in taken.items()},
        **planned,
        "setup": outcome.setup_s,
        "loss": outcome.facts["losses"][-1],
        "cost": outcome.step_s if bench.on_cuda else outcome.cpu_s,
    }


def planned_bytes(row: BenchRow) -> float:
    """Return the most bytes of a step by the plan's formula, comparable with a measured peak."""
    phases = training_memory(TrainConfig.model_validate(row.config), row.ranks).phases
    return float(max(m.total for name, m in phases.items() if name != "evaluation"))


def _mfu(row: BenchRow, rate: float) -> float | None:
    """Compute MFU in percent of the dense peak; None if the device is not in the table of peaks.

    ``rate``: tokens/s of one GPU.
    """
    config = TrainConfig.model_validate(row.config)
    arithmetic = Precision.choose(config.precision, torch.device("cuda")).arithmetic
    peak = peak_flops(torch.cuda.get_device_name(), arithmetic)
    if peak is None:
        return None
    return 100 * rate * flops_per_token(config.model, config.batch.sequence_length) / peak


def _tokens(row: BenchRow) -> int:
    batch = row.config["batch"]
    return int(batch["sequences"] * batch["sequence_length"])


def _cpu_name() -> str:
    try:
        for line in Path("/proc/cpuinfo").read_text().splitlines():
            if line.startswith("model name"):
                return line.split(":", 1)[1].strip()
    except OSError:
        pass
    return platform.processor() or "unknown"
