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

from lehr_trainer.configs.train import TrainConfig
from lehr_trainer.contract.records import LogFn
from lehr_trainer.experiments import TABLES, Size
from lehr_trainer.experiments.measure import NO_ANSWER, WARM_UP_STEPS, RowOutcome, measure
from lehr_trainer.experiments.rows import BenchRow
from lehr_trainer.files import write_atomically
from lehr_trainer.planning.counts import flops_per_token
from lehr_trainer.planning.hardware import peak_flops
from lehr_trainer.planning.memory import training_memory
from lehr_trainer.runtime.precision import Precision

_GB = 1e9


@dataclass(frozen=True)
class Bench:
    """How to measure, and where results are kept."""

    size: Size
    device: str
    """cpu or cuda."""
    log: LogFn
    timeout_s: float = 900.0
    """For a row."""
    folder: Path | None = None
    """Keeps results between calls."""
    budget_s: float = math.inf
    """Seconds after which no further row is started."""

    @property
    def on_cuda(self) -> bool:
        return self.device == "cuda"

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
    began, measured = time.monotonic(), 0
    for row in rows:
        outcome = outcomes.get(row.key)
        # A row that failed is measured again: the reason may have been mended.
        if row.skip or (outcome is not None and not outcome.failed):
            continue
        time_left = bench.budget_s - (time.monotonic() - began)
        if time_left <= 0:
            break
        bench.log(row.name)
        timeout_s = min(bench.timeout_s, time_left)
        outcome = measure(
            row, turns=bench.size.turns, steps=_steps(bench.size, row), timeout_s=timeout_s
        )
        if outcome.error:
            bench.log(f"{row.name}: {outcome.error}")
        # Cut off by the budget: it gets another call, unless it had the whole budget already.
        cut_off = timeout_s < bench.timeout_s and outcome.error.startswith(NO_ANSWER)
        if not (measured and cut_off):
            outcomes[row.key] = outcome
            _write(bench.folder, row, machine, outcome)
        measured += 1
    table = _table(bench, name, rows, outcomes, {**machine, "load": round(load, 1)})
    if bench.folder is not None:
        (bench.folder / "results.md").write_text(table.markdown() + "\n")
        bench.log(f"results: {bench.folder / 'results.md'}")
    return table


def _steps(size: Size, row: BenchRow) -> int:
    """Return the steps of a turn: small ones get more, for about equally many tokens."""
    return min(20, max(size.steps, size.steps * size.tokens // _tokens(row) // 2))


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
    if folder is not None:
        content = {"config": row.config, "machine": machine, "outcome": asdict(outcome)}
        write_atomically(_path(folder, row), json.dumps(content))


# --- the table ----------------------------------------------------------------------------------


@dataclass(frozen=True)
class Column:
    key: str
    title: str
    unit: str
    method: str
    """How the figure was obtained, for readers who want to check it."""
    digits: int = 1


@dataclass(frozen=True)
class TableRow:
    name: str
    values: dict[str, float]
    note: str = ""
    """Why there are no figures, or what to know about them."""
    failed: bool = False
    """Whether it has no figures because of an error that the machine does not explain."""


@dataclass(frozen=True)
class BenchTable:
    experiment: str
    size: str
    title: str
    machine: dict[str, Any]
    columns: tuple[Column, ...]
    rows: tuple[TableRow, ...]

    def markdown(self) -> str:
        """Format for a terminal and a page: columns that no row fills are left out."""
        columns = [c for c in self.columns if any(c.key in row.values for row in self.rows)]
        head = ["", *(f"{c.title} ({c.unit})" if c.unit else c.title for c in columns), "note"]
        lines = [head, ["---", *["---:"] * len(columns), "---"]]
        for row in self.rows:
            figures = (
                f"{row.values[c.key]:,.{c.digits}f}" if c.key in row.values else "" for c in columns
            )
            lines.append([row.name, *figures, row.note.replace("|", "\\|")])
        widths = [max(map(len, cells)) for cells in zip(*lines, strict=True)]
        body = (
            " | ".join(cell.ljust(width) for cell, width in zip(line, widths, strict=True))
            for line in lines
        )
        methods = [f"- {c.title}: {c.method}" for c in columns]
        facts = "; ".join(f"{key} {value}" for key, value in self.machine.items())
        table = [f"| {line} |" for line in body]
        return "\n".join([f"**{self.title}**", "", *table, "", *methods, f"- Machine: {facts}"])


def _table(
    bench: Bench,
    name: str,
    rows: Sequence[BenchRow],
    outcomes: dict[str, RowOutcome | None],
    machine: dict[str, Any],
) -> BenchTable:
    lines: list[TableRow] = []
    for table, group in groupby(rows, lambda row: row.table):
        if name == "gpu":
            lines.append(TableRow(f"{table}: {TABLES[table]}", {}))
        first: dict[str, float] = {}
        for row in group:
            outcome = outcomes.get(row.key)
            values = _values(bench, row, outcome)
            cost, held = ("step", "reserved") if bench.on_cuda else ("cpu", "")
            first = first or (values if cost in values else {})
            if cost in values:
                values["speedup"] = first[cost] / values[cost]
            if held in values:
                values["saved"] = 100 * (values[held] / first[held] - 1)
            note = row.skip or (outcome.error if outcome else "not measured yet")
            lines.append(TableRow(row.name, values, note, outcome is not None and outcome.failed))
    return BenchTable(
        experiment=name,
        size=bench.size.name,
        title=f"{name}: {TABLES[name]}",
        machine=machine,
        columns=_columns(bench),
        rows=tuple(lines),
    )


def _columns(bench: Bench) -> tuple[Column, ...]:
    turns = f"median of {bench.size.turns} turns, by the clock; one row after the other"
    step = Column("step", "step", "ms", turns)
    rate = Column("rate", "tokens/s", "", "tokens of a step / its time", 0)
    of_step: tuple[Column, ...] = (
        step,
        Column("cpu", "processor", "ms", "the same, processor time over all threads"),
        rate,
        Column("speedup", "speed-up", "x", "processor time of the table's first row / its own", 2),
    )
    if bench.on_cuda:
        peak = (
            "torch.cuda.max_memory_allocated over all steps after the first; with CUDA graphs, "
            "whose replays it does not count, torch.cuda.max_memory_reserved"
        )
        plan = (
            "lehr plan's formula for the phases of a step, without evaluation, context and "
            "fragmentation"
        )
        saved = "reserved memory / that of the first row - 1"
        of_step = (
            step,
            Column("mfu", "MFU", "%", "tokens/s x FLOPs a token / the dense peak"),
            rate,
            Column("memory", "peak", "GB", peak, 2),
            Column("reserved", "reserved", "GB", "torch.cuda.max_memory_reserved", 2),
            Column("planned", "planned", "GB", plan, 2),
            Column("speedup", "speed-up", "x", "step of the table's first row / its own", 2),
            Column("saved", "memory change", "%", saved),
        )
    setup = f"building the model and its first {WARM_UP_STEPS} steps, compilation included"
    return (
        *of_step,
        Column("setup", "first steps", "s", setup),
        Column("loss", "loss", "nats", "of the last step, on random tokens", 3),
    )


def _values(bench: Bench, row: BenchRow, outcome: RowOutcome | None) -> dict[str, float]:
    """Return the row's figures that are known, by column.

    On a shared CPU rows are compared by processor time, which other work disturbs least; on a GPU
    by the clock.
    """
    values: dict[str, float] = {}
    if bench.on_cuda and not row.skip:
        values["planned"] = planned_bytes(row) / _GB
    if outcome is None or outcome.error:
        return values
    rate = _tokens(row) / outcome.step_s
    values |= {"step": 1e3 * outcome.step_s, "rate": rate, "setup": outcome.setup_s}
    values["loss"] = outcome.loss
    if not bench.on_cuda:
        values["cpu"] = 1e3 * outcome.cpu_s
    elif (mfu := _mfu(row, rate / row.ranks)) is not None:
        values["mfu"] = mfu
    if outcome.peak_bytes is not None and outcome.reserved_bytes is not None:
        values["memory"] = outcome.peak_bytes / _GB
        values["reserved"] = outcome.reserved_bytes / _GB
    return values


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
