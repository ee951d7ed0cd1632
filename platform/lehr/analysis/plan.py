"""Plan a run or a sweep before it starts: size, memory, time, cost.

Pure: from a spec and earlier measurements, if any. Each estimate states its source. Memory and FLOP
formulas are the trainer's own (``lehr_trainer.planning.memory``, ``lehr_trainer.planning.counts``).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

from lehr.analysis.plan_fit import (
    USABLE_MEMORY,
    gpus_that_fit,
    largest_micro_batch,
    usable_bytes,
    ways_to_fit,
)
from lehr.analysis.plan_stages import StagePlan, stage_flops, stage_plans
from lehr.analysis.plan_time import Before, estimate_time, link_lines, nothing_before
from lehr.analysis.replaced_parts import BuiltParts, changes_memory, replaced_model, still_known
from lehr.base import formats
from lehr.errors import PlanRefused
from lehr.specs import Spec, expand
from lehr.specs.campaign import Campaign
from lehr.specs.course import trunk_of
from lehr.specs.run import Resources, RunSpec
from lehr.specs.stages import stages
from lehr.specs.sweep_expand import value_trials
from lehr_trainer.configs.corpus import MixCorpus
from lehr_trainer.configs.presets import MODEL_PRESETS
from lehr_trainer.configs.sizes import ParameterCounts
from lehr_trainer.configs.stages import as_built
from lehr_trainer.configs.train import TrainConfig
from lehr_trainer.planning.counts import CheckpointPlan, checkpoint_plan, parameter_counts
from lehr_trainer.planning.hardware import GPUS, GpuType, gpu_of_kind, names
from lehr_trainer.planning.memory import MemoryPlan, memory_by_stage, not_counted


@dataclass(frozen=True)
class RunPlan:
    model: str  # A preset's name, or e.g. ``llama of 8 layers``.
    parameters: ParameterCounts
    tied: bool
    tokens_per_step: int  # Of the last stage.
    tokens: int
    steps: int
    stages: list[StagePlan]  # Empty for a run without any.
    shares: dict[str, float]
    """Of the corpora of a mix in the training tokens; empty for a single corpus, and for stages."""
    flops: float  # Of the whole run.
    resources: Resources
    gpu: GpuType | None  # The requested kind; None when any will do or the kind is unknown.
    memory: MemoryPlan  # Of one GPU, in the stage of its training that takes most.
    memory_stages: list[MemoryPlan]
    """The same for each stage and shape of a micro-batch, in the order of the training."""
    micro_batch: int  # In the stage that takes most memory.
    accumulation: int
    fits: bool | None  # Whether it fits in ``gpu``; None when unknown.
    largest_micro_batch: int | None
    """Largest one of a rank's share that fits in ``gpu``; None when none does, or unknown."""
    seconds: float | None
    basis: str  # Source of the time estimate, or why there is none.
    link: list[str]  # What nodes send each other in a step, in words; empty on one node.
    dollars_per_gpu_hour: float | None
    replaced_parts: list[str]
    """What is known of the parts that the project replaces, and what is not."""
    not_counted: list[str]  # What ``memory`` does not count of this run, in words.
    checkpoints: CheckpointPlan
    upload: str | None  # Where its checkpoints are copied.

    @property
    def gpus(self) -> int:
        """Return the GPUs of all its nodes."""
        return self.resources.gpus

    @property
    def gpu_type(self) -> str | None:
        return self.resources.gpu_type

    @property
    def on_nodes(self) -> str:
        """Return e.g. " on 2 nodes", to follow the GPUs; empty for one node."""
        nodes = self.resources.nodes
        return f" on {nodes} nodes" if nodes > 1 else ""

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
        roomy = [gpu.memory_bytes for gpu in GPUS if self.memory.peak <= usable_bytes(gpu)]
        return min(roomy, default=None)

    @property
    def roomy_gpus(self) -> list[str]:
        """Return the GPUs in which it would fit, smallest first."""
        return names(gpu for gpu in GPUS if self.memory.peak <= usable_bytes(gpu))


@dataclass(frozen=True)
class SpecPlan:
    """Of a run, of the trials of a sweep, or of the stages of a rollout."""

    spec: Spec
    runs: list[tuple[Any, RunPlan]]
    """Each with what it is: a trial's point, a stage (of the run that trains); None for a run."""
    places: int = 1  # Number of trials that run at a time.
    trunk: RunPlan | None = None  # What trains the stages that the trials share.

    @property
    def campaign(self) -> Campaign | None:
        """Return the campaign, whose runs are its rungs."""
        return self.spec.campaign if self.spec.kind == "sweep" else None

    @property
    def later(self) -> int:
        """Return the trials beyond ``runs``, whose values TPE chooses from earlier results."""
        if self.spec.kind == "sweep" and self.campaign is None:
            return self.spec.trial_count - len(self.runs)
        return 0

    @property
    def waves(self) -> int:
        return math.ceil((len(self.runs) + self.later) / self.places)

    @property
    def share(self) -> float:
        """Return all trials over the known ones: the others are assumed to cost the same."""
        if self.campaign is not None:  # So that together they cost its budget.
            planned = sum(plan.gpu_hours or 0.0 for _, plan in self.runs)
            return self.campaign.gpu_hours / planned if planned else 1.0
        return (len(self.runs) + self.later) / len(self.runs)

    @property
    def seconds(self) -> float | None:
        """Return seconds from the first start to the last end."""
        own, shared = self._known(lambda plan: plan.seconds)
        return None if own is None or self.campaign is not None else shared + self.waves * max(own)

    @property
    def gpu_hours(self) -> float | None:
        own, shared = self._known(lambda plan: plan.gpu_hours)
        return None if own is None else shared + sum(own) * self.share

    @property
    def dollars(self) -> float | None:
        own, shared = self._known(lambda plan: plan.dollars)
        return None if own is None else shared + sum(own) * self.share

    def _known(self, of: Callable[[RunPlan], float | None]) -> tuple[list[float] | None, float]:
        """Return a figure of each run without what it shares, and that."""
        shared = (of(self.trunk) if self.trunk is not None else None) or 0.0
        own = [figure - shared for _, plan in self.runs if (figure := of(plan)) is not None]
        return own if len(own) == len(self.runs) else None, shared


def plan_run(
    spec: RunSpec,
    *,
    before: Before = nothing_before,
    price: float | None = None,
    built: BuiltParts | None = None,
) -> RunPlan:
    """Plan a run. ``price`` is in dollars per GPU-hour; ``built`` are the project's own parts;
    ``before`` returns the measured runs.

    The memory of a replaced part that was not traced is unknown: the run neither fits nor does not.
    """
    train, corpus = spec.own, spec.own.data.corpus
    gpus, ranks = spec.resources.gpus, spec.resources.ranks
    kind = spec.resources.gpu_type
    gpu = None if kind is None else gpu_of_kind(kind)
    counts = parameter_counts(train.model)
    own_flops = None if built is None else built.flops_per_token
    if built is not None and built.parameters is not None:
        counts = replace(counts, other=built.parameters - counts.total)
    stages, needs = as_built(train), memory_by_stage(train, ranks)
    needs = needs if built is None else built.changed(needs)
    memory = max(needs, key=lambda stage: stage.peak)
    largest = next(own for span, own in stages if span.name == memory.stage)
    per_rank = largest.batch.sequences // ranks
    micro_batch = largest.batch.micro_batch or per_rank
    of_stages = [
        stage_flops(stage) if own_flops is None else own_flops * stage.span.trained
        for stage in stages
    ]
    flops = sum(of_stages)
    own_parts = changes_memory(train)
    judged = None if own_parts and (built is None or not built.traces) else gpu
    time = estimate_time(
        train,
        gpus=gpus,
        gpu=gpu,
        flops=flops,
        parameters=counts.total,
        measured=before(spec, counts.total),
    )
    nodes = spec.resources.nodes
    step_s = time.seconds and time.seconds * train.tokens_per_step / train.total_tokens
    lines = link_lines(train, nodes=nodes, ranks=ranks, step_s=step_s)
    return RunPlan(
        model=model_name(train),
        parameters=counts,
        tied=counts.head == 0,
        tokens_per_step=train.tokens_per_step,
        tokens=train.total_tokens,
        steps=train.steps,
        stages=stage_plans(train, ranks, needs, of_stages),
        shares=corpus.shares() if isinstance(corpus, MixCorpus) and not train.stages else {},
        flops=flops,
        resources=spec.resources,
        gpu=gpu,
        memory=memory,
        memory_stages=needs,
        micro_batch=micro_batch,
        accumulation=per_rank // micro_batch,
        fits=None if judged is None else memory.peak <= usable_bytes(judged),
        # Of one's own parts only this micro-batch was traced.
        largest_micro_batch=None
        if judged is None or own_parts
        else largest_micro_batch(largest, ranks, judged),
        seconds=time.seconds,
        basis=time.basis,
        link=list(lines) if nodes > 1 else [],
        dollars_per_gpu_hour=gpu.dollars_per_hour if price is None and gpu is not None else price,
        replaced_parts=still_known(train, built),
        not_counted=not_counted(train),
        checkpoints=checkpoint_plan(train),
        upload=spec.checkpoints.upload,
    )


def known_runs(spec: Spec) -> list[tuple[Any, RunSpec]]:
    """Return the runs that are known before it starts, each with what it is (``SpecPlan.runs``)."""
    if spec.kind == "run":
        return [(None, spec)]
    if spec.kind == "sweep":
        return list(expand(spec)) if spec.campaign is None else value_trials(spec)
    return [(stage, stage.train) for stage in stages(spec)]


def plan_spec(
    spec: Spec, plan: Callable[[RunSpec], RunPlan] = plan_run, *, places: int | None = None
) -> SpecPlan:
    """Plan each run of a spec by ``plan``. ``places``: how many trials the cluster trains at once;
    None plans one place per trial.
    """
    runs = [(key, plan(run)) for key, run in known_runs(spec)]
    if spec.kind != "sweep":
        return SpecPlan(spec, runs)
    at_once = len(runs) if places is None else max(places, 1)
    trunk = trunk_of(spec)
    shared = None if trunk is None else plan(trunk)
    return SpecPlan(spec, runs, min(at_once, len(runs), spec.max_concurrent or len(runs)), shared)


def refuse_if_impossible(spec: RunSpec, plan: RunPlan) -> None:
    """Reject an impossible run before it uses GPUs.

    Raises:
        PlanRefused: it does not fit in the requested kind of GPU; the hint has the ways to fit.
    """
    if plan.fits is not False or plan.gpu is None:
        return
    need, room = plan.memory.peak / 1e9, plan.gpu.memory_bytes / 1e9
    over = need - usable_bytes(plan.gpu) / 1e9
    article = "an" if plan.gpu.name[0] in "AHLR" else "a"
    ways = [] if plan.replaced_parts else ways_to_fit(spec, plan.gpu)
    if plan.replaced_parts:
        hint = (
            "Of parts that are not Lehr's only this config was traced. Try a smaller "
            "train.batch.micro_batch, or train.activation_checkpointing.policy=block."
        )
    elif ways:
        lines = "\n    ".join(way.text for way in ways)
        hint = f"It fits with one of these, the cheapest in time first:\n    {lines}"
    else:
        hint = "Not even one sequence at a time fits, with everything recomputed."
        others = gpus_that_fit(spec)
        hint += (
            f" It fits, as it is or changed like this, in: {', '.join(others)}." if others else ""
        )
    raise PlanRefused(
        f"{spec.name} needs about {need:.1f} GB a GPU, {over:.1f} GB too much: "
        f"{article} {plan.gpu.name} has {room:.0f} GB, of which a training can use "
        f"{USABLE_MEMORY:.0%}.",
        hint=hint,
    )


def refuse_without_space(plans: Sequence[RunPlan], places: int, free: Sequence[int]) -> None:
    """Reject runs whose checkpoints the folders of runs cannot hold.

    Runs whose model or optimizer is the project's own are not counted: their size is not known.

    Args:
        plans: of the runs that are launched together.
        places: how many of them train at once; each writes one checkpoint before it removes one.
        free: free bytes of each folder of runs that they may get; empty where unknown.

    Raises:
        PlanRefused: what is kept and written at once needs more.
    """
    counted = [one.checkpoints for one in plans if not one.replaced_parts and one.checkpoints.saves]
    kept = sum(one.kept * one.size_bytes for one in counted)
    largest = max((one.size_bytes for one in counted), default=0)
    need = kept + largest * min(places, len(counted))
    room = max(free, default=need) if len(plans) == 1 else sum(free) if free else need
    if need > room:
        raise PlanRefused(
            f"the checkpoints need {formats.size(need)} at once ({formats.size(kept)} are kept, "
            f"each of up to {formats.size(largest)}), but the folders of runs have "
            f"{formats.size(room)} free, as the agents of their nodes report.",
            hint="Keep fewer (train.checkpoint.keep_last, keep_every, keep_best), delete old runs, "
            "or let LEHR_RUNS be a larger disk.",
        )


def model_name(train: TrainConfig) -> str:
    """Return the project's class, the preset with these values, or the kind and its depth."""
    if (own := replaced_model(train)) is not None:
        return own
    values = train.model.model_dump(exclude_defaults=False)
    for name, preset in MODEL_PRESETS.items():
        model = type(train.model)
        if preset.values.get("kind") == train.model.kind and (
            model.model_validate(preset.values).model_dump() == values
        ):
            return name
    return f"{train.model.kind} of {formats.counted(train.model.num_hidden_layers, 'layer')}"
