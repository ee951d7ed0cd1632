"""Settings of an experiment, and the machine that it runs on."""

from __future__ import annotations

import os
import platform
from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch

from lehr_trainer.callbacks import LogFn
from lehr_trainer.configs.train import TrainConfig
from lehr_trainer.experiments import memory
from lehr_trainer.experiments.case import Case
from lehr_trainer.experiments.runner import RowOutcome, measure
from lehr_trainer.experiments.sizes import Size
from lehr_trainer.experiments.table import Column, Row, change, ratio
from lehr_trainer.planning.counts import flops_per_token
from lehr_trainer.planning.hardware import peak_flops
from lehr_trainer.runtime.precision import Precision


@dataclass(frozen=True)
class BenchPlan:
    size: Size
    device: str
    """cpu or cuda."""
    log: LogFn
    timeout_s: float = 600.0
    eager: bool = False
    """Leave out rows that compile."""
    memory_gb: float | None = None
    """For ``batch``: memory that may be used; None is all of the device's, or 1 GB of a CPU's."""
    out: Path | None = None
    """For ``gpu``: folder that keeps results between calls."""
    budget_s: float | None = None
    """For ``gpu``: seconds after which no further row is started."""
    only: tuple[str, ...] = field(default=())
    """For ``gpu``: names of sections."""

    @property
    def on_cuda(self) -> bool:
        return self.device == "cuda"

    @property
    def no_compiling(self) -> str:
        """Explain why rows that compile are left out, if they are."""
        return "left out by --eager" if self.eager else ""

    def measure(self, cases: Iterable[Case], *, launches: bool = False) -> list[RowOutcome]:
        return measure(
            cases,
            turns=self.size.turns,
            steps=self.size.steps,
            together=not self.on_cuda,
            log=self.log,
            launches=launches,
            timeout_s=self.timeout_s,
        )

    def machine(self) -> dict[str, Any]:
        """Describe the machine that the figures belong to."""
        facts: dict[str, Any] = {"torch": torch.__version__, "python": platform.python_version()}
        if self.on_cuda:
            facts["gpu"] = torch.cuda.get_device_name()
            facts["cuda"] = torch.version.cuda
        else:
            facts["cpu"] = _cpu_name()
            facts["cores"] = len(os.sched_getaffinity(0))
            facts["threads"] = torch.get_num_threads()
            facts["load"] = round(os.getloadavg()[0], 1)
        return facts

    def step_columns(self) -> tuple[Column, ...]:
        """Return the columns that every experiment over trainings has."""
        turns = f"median of {self.size.turns} turns of {self.size.steps} steps"
        shared = (
            "rows take turns, so that other work meets all alike"
            if not self.on_cuda
            else "rows run one after the other; the device is waited for once a turn"
        )
        held = (
            (
                Column("memory", "peak", "GB", memory.ON_CUDA),
                Column("reserved", "reserved", "GB", "torch.cuda.max_memory_reserved"),
                Column(
                    "device",
                    "device",
                    "GB",
                    "what the driver counts as taken after the last step, this command's own "
                    "context included",
                ),
            )
            if self.on_cuda
            else (Column("memory", "memory", "MB", memory.ON_CPU, 1),)
        )
        return (
            Column("step", "step", "ms", f"{turns}, by the clock; {shared}", 1),
            Column("cpu", "processor", "ms", "the same, processor time over all threads", 1)
            if not self.on_cuda
            else Column("mfu", "MFU", "%", "tokens/s x FLOPs a token / the dense peak", 1),
            Column("rate", "tokens/s", "", "tokens of a step / its time", 0),
            *held,
        )

    def step_values(self, outcome: RowOutcome) -> dict[str, float | str | None]:
        if outcome.error:
            return {}
        step = outcome.step_s
        unit = 1e9 if self.on_cuda else 1e6
        bytes_of = {
            "memory": "memory_bytes",
            "reserved": "reserved_bytes",
            "device": "device_bytes",
        }
        rate = ratio(_tokens(outcome), step)
        return {
            "step": _times(step, 1e3),
            "cpu": _times(outcome.cpu_s, 1e3),
            "rate": rate,
            "mfu": mfu(outcome, ratio(rate, outcome.case.ranks)),
            **{key: _times(outcome.fact(name), 1 / unit) for key, name in bytes_of.items()},
        }

    def cost(self, outcome: RowOutcome) -> float | None:
        """Return the seconds a step by which rows are compared.

        On a shared CPU it is processor time, which other work disturbs least; on a GPU the clock.
        """
        return outcome.step_s if self.on_cuda else outcome.cpu_s

    @property
    def cost_name(self) -> str:
        return "step" if self.on_cuda else "processor time"

    def loss_column(self, outcomes: Iterable[RowOutcome]) -> Column:
        tokens = common_steps(outcomes) * self.size.tokens
        explanation = f"training loss after {tokens:,} tokens, the same for all rows"
        return Column("loss", "loss", "nats", explanation, 3)


def rows_against(
    plan: BenchPlan, outcomes: list[RowOutcome], baseline: RowOutcome, **more: str
) -> tuple[Row, ...]:
    """Make a row for each: step, loss, and time and memory against ``baseline`` in percent."""
    held = "reserved" if plan.on_cuda else "memory"
    base = plan.step_values(baseline)
    steps = common_steps(outcomes)
    rows = []
    for outcome in outcomes:
        values = plan.step_values(outcome)
        values["loss"] = outcome.loss_after(steps)
        values["delta_time"] = change(plan.cost(outcome), plan.cost(baseline))
        values["delta_memory"] = change(_number(values.get(held)), _number(base.get(held)))
        values["speedup"] = ratio(plan.cost(baseline), plan.cost(outcome))
        for key, name in more.items():
            values[key] = outcome.fact(name)
        rows.append(Row(outcome.case.name, values, outcome.note))
    return tuple(rows)


def common_steps(outcomes: Iterable[RowOutcome]) -> int:
    """Return the number of steps that every row with losses has; emulated rows take few."""
    return min((len(o.fact("losses")) for o in outcomes if o.fact("losses")), default=0)


def mfu(outcome: RowOutcome, rate: float | None) -> float | None:
    """Compute MFU in percent of the dense peak; None if the device is not in the table.

    ``rate``: tokens/s of one GPU.
    """
    if rate is None or not torch.cuda.is_available():
        return None
    config = TrainConfig.model_validate(outcome.case.config)
    arithmetic = Precision.choose(config.precision, torch.device("cuda")).arithmetic
    peak = peak_flops(torch.cuda.get_device_name(), arithmetic)
    if peak is None or config.device == "cpu":
        return None
    return 100 * rate * flops_per_token(config.model, config.batch.sequence_length) / peak


def _tokens(outcome: RowOutcome) -> float:
    batch = outcome.case.config["batch"]
    return float(batch["sequences"] * batch["sequence_length"])


def _times(value: float | None, factor: float) -> float | None:
    return None if value is None else value * factor


def _number(value: float | str | None) -> float | None:
    return value if isinstance(value, float | int) else None


def _cpu_name() -> str:
    try:
        for line in Path("/proc/cpuinfo").read_text().splitlines():
            if line.startswith("model name"):
                return line.split(":", 1)[1].strip()
    except OSError:
        pass
    return platform.processor() or "unknown"
