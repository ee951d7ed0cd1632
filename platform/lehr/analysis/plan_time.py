"""Estimate how long a run takes: from runs that were measured, else from published ones."""

from __future__ import annotations

import math
import statistics
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from lehr.analysis.plan_kind import SIZES
from lehr_trainer.configs.train import TrainConfig
from lehr_trainer.planning.hardware import Arithmetic, GpuType
from lehr_trainer.planning.published import UsualMfu, usual_mfu

if TYPE_CHECKING:
    from lehr.specs.run import RunSpec

LIKE = 3.0
"""Largest factor in parameters between a run and another one whose MFU is used for it."""
_REASONS = 3
"""Differences of a run that are named."""


@dataclass(frozen=True)
class Measured:
    """The speed of an earlier run."""

    run_name: str
    tokens_per_s: float
    """Median over its steps, of all GPUs."""
    mfu: float | None = None
    """Median over its steps, from 0 to 1; None where the peak of its GPU is unknown."""
    parameters: int = 0
    differs: Mapping[str, str] = field(default_factory=dict)
    """What was different in it, by trait (``plan_kind.traits``), as phrases. Empty: it is of the
    same kind."""
    device: str = ""
    """Its GPU, where a run of this spec may get another one."""


Before = Callable[["RunSpec", int], Sequence[Measured]]
"""Returns the earlier runs for a spec and the parameters of its model, newest first."""


def nothing_before(_spec: RunSpec, _parameters: int) -> Sequence[Measured]:
    return ()


@dataclass(frozen=True)
class TimeEstimate:
    seconds: float | None
    basis: str
    """What the estimate comes from, or why there is none."""


def estimate_time(
    train: TrainConfig,
    *,
    gpus: int,
    gpu: GpuType | None,
    flops: float,
    parameters: int,
    measured: Sequence[Measured],
) -> TimeEstimate:
    """Estimate the seconds of a run.

    A run of the same kind is taken as it was. The MFU of runs that differ in size or batch alone is
    used where their parameters differ by a factor of three at most. Otherwise the MFU of published
    runs on such a GPU is used.

    Args:
        train: what is trained.
        gpus: how many GPUs train it.
        gpu: their kind, if known.
        flops: of the whole run (``flops_per_token``: recomputation not counted).
        parameters: of the model.
        measured: earlier runs, newest first.
    """
    same = [run for run in measured if not run.differs]
    if same:
        speed = f"{same[0].tokens_per_s:,.0f} tok/s"
        seconds = train.total_tokens / same[0].tokens_per_s
        place = f" on {same[0].device}" if same[0].device else ""
        return TimeEstimate(seconds, f"from {same[0].run_name}, at its median {speed}{place}")
    unmeasured = f"no measured run of this kind yet{_nearest_kind(measured)}"
    if gpu is None:
        return TimeEstimate(None, f"unknown: {unmeasured}, and no GPU type to plan for")
    arithmetic = arithmetic_of(train)
    peak = gpu.peak_flops.get(arithmetic)
    if peak is None:
        return TimeEstimate(
            None, f"unknown: {unmeasured}, and no {arithmetic} peak of {gpu.kind} is known"
        )
    like = _nearest(measured, parameters)
    if like:
        share = statistics.median([run.mfu for run in like if run.mfu is not None])
        names = ", ".join(run.run_name for run in like[:3]) + (", ..." if len(like) > 3 else "")
        basis = f"from the MFU of {names} ({share:.0%}), of another size or batch; {unmeasured}"
        return TimeEstimate(flops / (share * peak * gpus), basis)
    usual = usual_mfu(gpu.kind)
    slowdown = train.activation_checkpointing.time_factor
    seconds = flops * slowdown / (usual.share * peak * gpus)
    return TimeEstimate(seconds, f"{_published(usual, slowdown)}; {unmeasured}")


def arithmetic_of(train: TrainConfig) -> Arithmetic:
    """Return the arithmetic whose dense peak a run's MFU is measured against."""
    if train.precision.compute == "fp32":
        return "tf32" if train.precision.tf32 else "fp32"
    return "bf16"


def _nearest_kind(measured: Sequence[Measured]) -> str:
    """Explain why the run that differs least is of another kind; empty if it differs in much."""
    nearest = min(measured, key=lambda run: len(run.differs), default=None)
    if nearest is None or len(nearest.differs) > _REASONS:
        return ""
    return f" ({nearest.run_name} differs: {', '.join(nearest.differs.values())})"


def _nearest(measured: Sequence[Measured], parameters: int) -> list[Measured]:
    """Return the measured runs with an MFU and about as many parameters, nearest first. They
    differ in sizes alone.
    """
    if parameters <= 0:
        return []
    near = [
        (abs(math.log(run.parameters / parameters)), number, run)
        for number, run in enumerate(measured)
        if run.mfu and run.parameters > 0 and run.differs.keys() <= SIZES
    ]
    return [run for distance, _, run in sorted(near)[:5] if distance <= math.log(LIKE)]


def _published(usual: UsualMfu, slowdown: float) -> str:
    return f"from plan, at {100 * usual.share / slowdown:.0f} % MFU ({usual.source})"
