"""Plan a run or a sweep before it starts: size, memory, time, cost.

Pure: from a spec and earlier measurements, if any. Each estimate states its source. Memory and FLOP
formulas are the trainer's own (``lehr_trainer.planning.memory``, ``lehr_trainer.planning.counts``).
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from lehr.analysis.batch_size import UsualBatch, usual_batches
from lehr.errors import PlanRefused
from lehr.specs.run import RunSpec
from lehr.specs.sweep import SweepSpec
from lehr_trainer.configs.presets import MODEL_PRESETS
from lehr_trainer.configs.sizes import ParameterCounts
from lehr_trainer.configs.train import MixCorpus, TrainConfig
from lehr_trainer.planning.counts import (
    flops_per_token,
    parameter_counts,
)
from lehr_trainer.planning.hardware import GPUS, Arithmetic, GpuType
from lehr_trainer.planning.memory import MemoryPlan, memory_by_stage, training_memory

ASSUMED_MFU = 0.40
"""MFU that a plan assumes. The 1.2B Llama run of docs/reference-runs.md reached 42 % on 8xH100,
with bf16 and every block recomputed.
"""
USABLE_MEMORY = 0.94
"""Share of a GPU's memory that training can use; the CUDA context and fragmentation take the
rest.
"""


@dataclass(frozen=True)
class Measured:
    """The speed of an earlier run of the same kind."""

    tokens_per_s: float
    run_name: str


@dataclass(frozen=True)
class RunPlan:
    model: str
    """A preset's name, or e.g. ``llama of 8 layers``."""
    parameters: ParameterCounts
    tied: bool
    tokens_per_step: int
    steps: int
    shares: dict[str, float]
    """Of the corpora of a mix in the training tokens; empty for a single corpus."""
    flops: float
    """Of the whole run."""
    gpus: int
    gpu: GpuType | None
    """The requested kind; None when any will do or the kind is unknown."""
    gpu_type: str | None
    micro_batch: int
    accumulation: int
    memory: MemoryPlan
    """Of one GPU, in the stage of its training that takes most."""
    memory_stages: list[MemoryPlan]
    """The same for each shape of a micro-batch, in the order of the training."""
    fits: bool | None
    """Whether it fits in ``gpu``; None when unknown."""
    seconds: float | None
    basis: str
    """Source of the time estimate, or why there is none."""
    dollars_per_gpu_hour: float | None
    usual_batches: list[UsualBatch]
    """Batch sizes that publications recommend for this run."""

    @property
    def tokens(self) -> int:
        return self.steps * self.tokens_per_step

    @property
    def tokens_per_parameter(self) -> float:
        """Return tokens for each parameter of the model, embeddings included."""
        return self.tokens / self.parameters.total

    @property
    def corpus_tokens(self) -> dict[str, int]:
        """Return the tokens that the run takes of each corpus of a mix."""
        return {name: round(share * self.tokens) for name, share in self.shares.items()}

    @property
    def gpu_hours(self) -> float | None:
        return None if self.seconds is None else self.seconds * self.gpus / 3600

    @property
    def dollars(self) -> float | None:
        if self.gpu_hours is None or self.dollars_per_gpu_hour is None:
            return None
        return self.gpu_hours * self.dollars_per_gpu_hour

    @property
    def least_memory_bytes(self) -> int | None:
        """Return the smallest memory of a known GPU in which it would fit."""
        sizes = [gpu.memory_bytes for gpu in GPUS]
        return min((n for n in sizes if self.memory.peak <= USABLE_MEMORY * n), default=None)

    @property
    def roomy_gpus(self) -> list[str]:
        """Return kinds of GPU in which it would fit, smallest first."""
        roomy = [gpu for gpu in GPUS if self.memory.peak <= USABLE_MEMORY * gpu.memory_bytes]
        return list(dict.fromkeys(gpu.kind for gpu in sorted(roomy, key=lambda g: g.memory_bytes)))


@dataclass(frozen=True)
class SweepPlan:
    name: str
    method: str
    paths: list[str]
    metric: str
    goal: str
    trials: list[tuple[dict[str, Any], RunPlan]]
    places: int
    """Number of trials that run at a time."""
    later: int = 0
    """Trials beyond ``trials``, whose values TPE chooses from the results of earlier ones."""

    @property
    def waves(self) -> int:
        return math.ceil((len(self.trials) + self.later) / self.places)

    @property
    def _share(self) -> float:
        """Return all trials over the known ones: the others are assumed to cost the same."""
        return (len(self.trials) + self.later) / len(self.trials)

    @property
    def seconds(self) -> float | None:
        """Return seconds from the first start to the last end."""
        longest = _all([plan.seconds for _, plan in self.trials])
        return None if longest is None else self.waves * max(longest)

    @property
    def gpu_hours(self) -> float | None:
        hours = _all([plan.gpu_hours for _, plan in self.trials])
        return None if hours is None else sum(hours) * self._share

    @property
    def dollars(self) -> float | None:
        dollars = _all([plan.dollars for _, plan in self.trials])
        return None if dollars is None else sum(dollars) * self._share


def plan_run(
    spec: RunSpec, *, measured: Measured | None = None, price: float | None = None
) -> RunPlan:
    """Plan a run. ``price`` is in dollars per GPU-hour."""
    train, corpus = spec.train, spec.train.data.corpus
    gpus, ranks = spec.resources.gpus, spec.resources.ranks
    gpu = _asked_for(spec.resources.gpu_type)
    counts = parameter_counts(train.model)
    per_rank = train.batch.sequences // ranks
    micro_batch = train.batch.micro_batch or per_rank
    stages = memory_by_stage(train, ranks)
    memory = max(stages, key=lambda stage: stage.peak)
    flops = _flops(train)
    seconds, basis = _time(train, gpus, gpu, flops, measured)
    return RunPlan(
        model=model_name(train),
        parameters=counts,
        tied=counts.head == 0,
        tokens_per_step=train.tokens_per_step,
        steps=train.steps,
        shares=corpus.shares() if isinstance(corpus, MixCorpus) else {},
        flops=flops,
        gpus=gpus,
        gpu=gpu,
        gpu_type=spec.resources.gpu_type,
        micro_batch=micro_batch,
        accumulation=per_rank // micro_batch,
        memory=memory,
        memory_stages=stages,
        fits=None if gpu is None else memory.peak <= USABLE_MEMORY * gpu.memory_bytes,
        seconds=seconds,
        basis=basis,
        dollars_per_gpu_hour=price if price is not None else _price(gpu),
        usual_batches=usual_batches(train),
    )


def plan_sweep(
    spec: SweepSpec,
    trials: Sequence[tuple[dict[str, Any], RunSpec]],
    *,
    free_gpus: int | None = None,
    measured: Measured | None = None,
    price: float | None = None,
) -> SweepPlan:
    """Plan a sweep. ``free_gpus``: available GPUs of the cluster; None plans one place per
    trial.
    """
    plans = [
        (parameters, plan_run(run, measured=measured, price=price)) for parameters, run in trials
    ]
    places = len(plans)
    if free_gpus is not None:
        places = max(free_gpus // max(1, *(plan.gpus for _, plan in plans)), 1)
    if spec.max_concurrent is not None:
        places = min(places, spec.max_concurrent)
    return SweepPlan(
        name=spec.name,
        method=spec.method,
        paths=spec.paths,
        metric=spec.metric.name,
        goal=spec.metric.goal,
        trials=plans,
        places=min(places, len(plans)),
        later=spec.trial_count - len(plans),
    )


def refuse_if_impossible(spec: RunSpec, plan: RunPlan) -> None:
    """Reject an impossible run before it uses GPUs.

    Raises:
        PlanRefused: it does not fit in the requested kind of GPU.
    """
    if plan.fits is not False or plan.gpu is None:
        return
    need = plan.memory.peak / 1e9
    room = plan.gpu.memory_bytes / 1e9
    smaller = _micro_batch_that_fits(spec, plan.gpu)
    if smaller is not None:
        hint = f"It fits with train.batch.micro_batch={smaller}, at the same batch and result."
    else:
        others = [kind for kind in plan.roomy_gpus if kind != plan.gpu.kind]
        hint = "Not even one sequence at a time fits."
        hint += f" It would fit in: {', '.join(others)}." if others else ""
    raise PlanRefused(
        f"{spec.name} needs about {need:.1f} GB a GPU, and {_article(plan.gpu.kind)} has "
        f"{room:.0f} GB.",
        hint=hint,
    )


def model_name(train: TrainConfig) -> str:
    """Return the preset with these values, else the kind and its depth."""
    values = train.model.model_dump(exclude_defaults=False)
    for name, preset in MODEL_PRESETS.items():
        model = type(train.model)
        if preset.values.get("kind") == train.model.kind and (
            model.model_validate(preset.values).model_dump() == values
        ):
            return name
    return f"{train.model.kind} of {train.model.num_hidden_layers} layers"


def _asked_for(gpu_type: str | None) -> GpuType | None:
    """Return the table's GPU for a spec's word; the largest, since ``A100`` usually means the 80
    GB one.
    """
    if gpu_type is None:
        return None
    word = gpu_type.upper()
    found = [gpu for gpu in GPUS if gpu.kind.upper() == word or word in gpu.words]
    plain = [gpu for gpu in found if gpu.words == frozenset({word})]
    return next(iter(plain or found), None)


def _flops(train: TrainConfig) -> float:
    """Return FLOPs of the whole run, each stage at its own sequence length."""
    starts = [0, *(round(stage.after * train.steps) for stage in train.batch.stages), train.steps]
    return sum(
        (end - start)
        * train.tokens_per_step
        * flops_per_token(train.model, train.batch.at(start, train.steps).sequence_length)
        for start, end in itertools.pairwise(starts)
    )


def _time(
    train: TrainConfig, gpus: int, gpu: GpuType | None, flops: float, measured: Measured | None
) -> tuple[float | None, str]:
    if measured is not None:
        seconds = train.total_tokens / measured.tokens_per_s
        speed = f"{measured.tokens_per_s:,.0f} tok/s"
        return seconds, f"from {measured.run_name}, at its median {speed}"
    unmeasured = "no measured run of this kind yet"
    if gpu is None:
        return None, f"unknown: {unmeasured}, and no GPU type to plan for"
    arithmetic = _arithmetic(train)
    peak = gpu.peak_flops.get(arithmetic)
    if peak is None:
        return None, f"unknown: {unmeasured}, and no {arithmetic} peak of {gpu.kind} is known"
    seconds = flops / (ASSUMED_MFU * peak * gpus)
    return seconds, f"from plan, at {ASSUMED_MFU * 100:.0f} % MFU; {unmeasured}"


def _arithmetic(train: TrainConfig) -> Arithmetic:
    if train.precision.compute == "fp32":
        return "tf32" if train.precision.tf32 else "fp32"
    return "bf16"


def _price(gpu: GpuType | None) -> float | None:
    return None if gpu is None else gpu.dollars_per_hour


def _micro_batch_that_fits(spec: RunSpec, gpu: GpuType) -> int | None:
    """Return the largest micro-batch that divides a rank's share and fits."""
    train, gpus = spec.train, spec.resources.gpus
    share = train.batch.sequences // gpus
    for micro_batch in range(share, 0, -1):
        if share % micro_batch:
            continue
        batch = train.batch.model_copy(update={"micro_batch": micro_batch})
        memory = training_memory(train.model_copy(update={"batch": batch}), gpus)
        if memory.peak <= USABLE_MEMORY * gpu.memory_bytes:
            return micro_batch
    return None


def _all(values: list[float | None]) -> list[float] | None:
    """Return the values if all are known."""
    known = [value for value in values if value is not None]
    return known if len(known) == len(values) else None


def _article(kind: str) -> str:
    return f"{'an' if kind[0] in 'AHLR' else 'a'} {kind}"
