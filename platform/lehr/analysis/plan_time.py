"""Estimate how long a run takes: from measured runs of the same kind, else from published ones."""

from __future__ import annotations

import math
import statistics
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field

from lehr.analysis.replaced_parts import not_ours
from lehr.specs.run import RunSpec
from lehr_trainer.configs.shapes import ROTARY_FIELDS
from lehr_trainer.configs.train import TrainConfig
from lehr_trainer.planning.counts import bytes_between_nodes
from lehr_trainer.planning.hardware import Arithmetic, GpuType, usual_mfu

_OF_BATCH = frozenset({"batch", "length", "micro-batch"})
SIZES = _OF_BATCH | {"size", "model", "stages", "GPUs"}
"""Traits that change how much a step computes. The others change how fast a GPU computes it, so
the MFU of a run that differs in them is not that of the planned one."""
_NO_SPEED = frozenset(
    {*ROTARY_FIELDS, "norm_eps", "parametrization", "base_width", "base_head_size"}
)
"""Fields of a model that do not change the time of a step."""


def traits(spec: RunSpec, parameters: int | None, *, cuda: bool) -> dict[str, str]:
    """Return what decides the speed of a run of Lehr's trainer, by name, each as a phrase.

    What its config leaves open depends on ``cuda``, whether it trains on a GPU.
    """
    train, resources = spec.own.on("cuda" if cuda else "cpu"), spec.resources
    shape = train.model.model_dump(exclude=set(_NO_SPEED))
    share = train.batch.sequences // resources.ranks
    later = [f", {one.sequence_length:,} after {one.after:.0%}" for one in train.batch.stages]
    found = {
        "size": "parameters unknown" if parameters is None else f"{parameters:,} parameters",
        "model": f"model {', '.join(f'{name} {value}' for name, value in shape.items())}",
        "batch": f"{train.batch.sequences:,} sequences a step",
        "length": f"sequences of {train.batch.sequence_length:,}{''.join(later)}",
        "micro-batch": f"micro-batch {train.batch.micro_batch or share}",
        "GPUs": f"{resources.gpus} GPUs on {resources.nodes} nodes",
        "precision": _precision(train, cuda=cuda),
        "compile": _compile(train),
        "recomputation": "no recomputation",
        "attention": f"attention {train.attention.backend}",
        "optimizer": f"optimizer {train.optimizer.name}",
        "loss": f"loss {train.loss.name}",
        "parts": "Lehr's own parts" if train.parts is None else not_ours(train),
    }
    if train.stages:
        found = {name: text for name, text in found.items() if name not in _OF_BATCH}
        found["stages"] = "; ".join(
            f"{span.trained / train.total_tokens:.0%} with {span.batch.sequences:,} sequences of "
            f"{span.batch.sequence_length:,}, micro-batch {span.batch.micro_batch or 'of all'}, "
            f"{'within documents, ' * own.attention.document_masking}loss {own.loss.name}"
            for span, own in train.course
        )
    recomputed = train.activation_checkpointing
    if recomputed.policy != "none":
        found["recomputation"] = f"recomputes {recomputed.policy} in 1 of {recomputed.every} layers"
    if train.attention.document_masking:
        found["attention"] += " within documents"
    if resources.ranks > 1:
        found["gradients"] = f"gradients compressed by {train.parallel.compression}"
    if train.deterministic:
        found["deterministic"] = "deterministic kernels"
    if not cuda and train.threads is not None:
        found["threads"] = f"{train.threads} threads"
    return found


def differences(earlier: dict[str, str], planned: dict[str, str]) -> dict[str, str]:
    """Return the traits of an earlier run that the planned one does not share, as phrases."""
    different = {
        name: earlier.get(name, f"no {planned.get(name)}")
        for name in dict.fromkeys([*planned, *earlier])
        if earlier.get(name) != planned.get(name)
    }
    if "model" in different:
        # Its number of parameters says more than a list of its sizes.
        different["model"] = "another shape of model"
        if "size" in different:
            del different["model"]
    return different


def _precision(train: TrainConfig, *, cuda: bool) -> str:
    precision = train.precision
    compute = precision.compute
    if compute == "auto":
        compute = "bf16" if cuda else "fp32"
    text = str(compute)
    if compute == "fp32" and cuda:
        text = "TF32" if precision.tf32 else "fp32 without TF32"
    if precision.fp8.recipe != "none":
        text += f" with FP8 {precision.fp8.recipe}"
    if precision.residual != "fp32":
        text += f", {precision.residual} residual stream"
    return text


def _compile(train: TrainConfig) -> str:
    compiling = train.compile
    if not compiling.compiles:
        return "not compiled"
    text = f"{compiling.scope} compiled"
    if compiling.mode != "default":
        text += f" with {compiling.mode}"
    return f"{text}, joint products" if compiling.joint_products else text


LIKE = 3.0  # Largest factor in parameters between a run and another one whose MFU is used for it.
_REASONS = 3  # Differences of a run that are named.


@dataclass(frozen=True)
class Measured:
    """The speed of an earlier run."""

    run_name: str
    tokens_per_s: float  # Median over its steps, of all GPUs.
    mfu: float | None = None
    """Median over its steps, from 0 to 1; None where the peak of its GPU is unknown."""
    parameters: int = 0
    differs: Mapping[str, str] = field(default_factory=dict)
    """What was different in it, by trait (``traits``), as phrases. Empty: it is of the
    same kind."""
    device: str = ""  # Its GPU, where a run of this spec may get another one.


Before = Callable[["RunSpec", int], Sequence[Measured]]
"""Returns the earlier runs for a spec and the parameters of its model, newest first."""


def nothing_before(_spec: RunSpec, _parameters: int) -> Sequence[Measured]:
    return ()


@dataclass(frozen=True)
class TimeEstimate:
    seconds: float | None
    basis: str  # What the estimate comes from, or why there is none.


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
    runs on such a GPU is used. ``flops`` are those of the whole run, recomputation not counted;
    ``measured`` has earlier runs, newest first.
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
    basis = f"from plan, at {100 * usual.share / slowdown:.0f} % MFU ({usual.source})"
    return TimeEstimate(seconds, f"{basis}; {unmeasured}")


def arithmetic_of(train: TrainConfig) -> Arithmetic:
    """Return the arithmetic whose dense peak a run's MFU is measured against."""
    if train.precision.compute == "fp32":
        return "tf32" if train.precision.tf32 else "fp32"
    return "bf16"


LINK_GBITS = 100  # Assumed between nodes, in each direction.
LINK_SHARE = 0.1  # Of a step, from which a plan names a change that sends less.


def link_lines(
    train: TrainConfig, *, nodes: int, ranks: int, step_s: float | None
) -> Iterator[str]:
    """Yield what nodes send each other in a step of ``step_s`` seconds, and a change if it is much.

    The change is only named, since it may change the result.
    """

    def sent(**changes: str) -> float:
        parallel = train.parallel.model_copy(update=changes)
        changed = train.model_copy(update={"parallel": parallel})
        return bytes_between_nodes(changed, nodes=nodes, ranks=ranks) / 1e9

    seconds = 8 * sent() / LINK_GBITS
    share = seconds / step_s if step_s else 0.0
    of_step = f", {share:.0%} of a step if nothing hides it" if share else ""
    speed = f"{LINK_GBITS} Gbit/s (assumed; measure: lehr doctor --link)"
    yield f"{sent():.1f} GB a step from each node: {seconds:.2f} s at {speed}{of_step}"
    gathers = train.parallel.shard in {"optimizer", "all"}
    name, value = ("shard", "node") if gathers else ("compression", "bf16")
    if share > LINK_SHARE and (less := sent(**{name: value})) < sent():
        yield f"train.parallel.{name}={value} sends {less:.1f} GB"


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
