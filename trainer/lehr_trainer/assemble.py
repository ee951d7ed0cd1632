"""Assembly of a ``Training`` that is ready for its first step, from a config.

Builds data, model and optimizer, resumes from a checkpoint, and writes the records about it.
``Started.startup_s`` has the seconds of each phase.
"""

from __future__ import annotations

import time
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import torch
from torch import nn

from lehr_trainer import parts
from lehr_trainer.checkpointing import state
from lehr_trainer.checkpointing.checkpoint import choose_checkpoint
from lehr_trainer.checkpointing.checkpointer import Checkpointer
from lehr_trainer.checkpointing.state import TrainProgress
from lehr_trainer.configs.stages import with_all_positions
from lehr_trainer.configs.train import TrainConfig
from lehr_trainer.contract import layout
from lehr_trainer.contract.records import Notice, Record, Resumed, Started, Warning_
from lehr_trainer.course import Course, OpenStage, build_token_loss
from lehr_trainer.diagnostics.diagnostics_logger import DiagnosticsLogger
from lehr_trainer.diagnostics.profiling import Profiler
from lehr_trainer.dry_run import compile_under_lock, dry_run_wrapped
from lehr_trainer.errors import BadConfig, BadData
from lehr_trainer.losses.variants import TokenLoss
from lehr_trainer.metrics_logger import MetricsLogger
from lehr_trainer.models import build_model_of
from lehr_trainer.models.attention import attention_backend, require_operands
from lehr_trainer.models.module_map import Decoder
from lehr_trainer.optim import build_optimizer
from lehr_trainer.parts import replaced_optimizer
from lehr_trainer.planning.counts import parameter_counts
from lehr_trainer.planning.hardware import peak_flops
from lehr_trainer.runtime import environment, sharding
from lehr_trainer.runtime.compiling import Accumulation, compile_model, recompute_activations
from lehr_trainer.runtime.distributed import Ranks, overflow_counts
from lehr_trainer.runtime.environment import RunContext
from lehr_trainer.runtime.precision import Precision
from lehr_trainer.step_control import StepControl
from lehr_trainer.tasks.scoring import Tasks
from lehr_trainer.train import Training
from lehr_trainer.update_step import UpdateStep
from lehr_trainer.weight_average import WeightAverage


def assemble(context: RunContext) -> Training:
    """Do everything that precedes the first step; the ``started`` record is written at the end."""
    config, ranks, timeline = context.config, context.ranks, context.timeline
    precision = Precision.choose(config.precision, ranks.device)
    environment.seed_generators(config.seed, ranks.rank)

    # Refuse what can be refused before a corpus is prepared: that may take hours.
    course = Course(context, precision)
    windows = any(config.model.windows)
    require_operands(config.attention, precision.operands, ranks.device, windows=windows)
    with attention_backend(config.attention, ranks.device):
        pass  # A package that is missing is only found out by switching it on.
    built = build_parts(with_all_positions(config, course.stages), ranks, precision)
    model, optimizer, update_step = built.model, built.optimizer, built.update_step
    if config.parts is not None and config.parts.optimizer is not None:
        parts.require_resumable(config.parts.optimizer, model, config.optimizer)
    timeline.mark("model")

    tasks = Tasks(config.evals, config, model, ranks, precision, context.log)
    course.tasks = tasks.digests
    course.prepare()
    timeline.mark("data")

    average = None if config.average is None else WeightAverage(config.average, model, ranks)
    # Restored into the converted model: FP8's histories belong to its converted layers.
    progress, how_it_began = resume(context, course, model, optimizer, update_step, average)
    through = context.place.note.skip_through
    if through is not None and through > progress.step:
        course.skip(progress, through)
        if not isinstance(how_it_began, Resumed):  # From step 0.
            how_it_began = Resumed(time=time.time(), step=progress.step, checkpoint="")
        how_it_began = how_it_began.model_copy(update={"skipped_through": through})
        context.log(how_it_began.rewound)
    timeline.mark("resume")

    stage = course.open(model, progress)
    if config.stages:
        course.follow(progress.step, model, optimizer)
    timeline.mark("first_batch")

    accumulation = prepare_model(model, config, ranks, accumulates=course.accumulates)
    dry_runs = course.dry_runs(progress.step, model, optimizer, accumulation)
    for dry_run, shapes in dry_runs:
        compile_under_lock(context, dry_run, shapes)
    wrapped = ranks.wrap(model, config.parallel, already_scaled=precision.scales_loss)
    for dry_run, shapes in dry_runs:
        dry_run_wrapped(context, dry_run, wrapped, shapes)
    timeline.mark("compile")

    device_name = environment.device_name(ranks.device)
    peak = peak_flops(device_name, precision.arithmetic)
    training = Training(
        config=stage.config,
        ranks=ranks,
        events=context.events,
        log=context.log,
        precision=precision,
        course=course,
        stage=stage,
        model=model,
        wrapped=wrapped,
        make_input=stage.make_input,
        loss=stage.loss,
        optimizer=optimizer,
        update_step=update_step,
        accumulation=accumulation,
        progress=progress,
        average=average,
        tasks=tasks,
        step_control=StepControl(
            context.place.attempt_dir / layout.ORDERS, context.signals, context.known_checkpoint_seq
        ),
        checkpointer=Checkpointer(context, course, model, optimizer, update_step, average),
        metrics_logger=MetricsLogger(
            stage.config,
            context.events,
            ranks.device,
            peak_flops=None if peak is None else peak * ranks.world_size,
            flops_per_token=stage.flops_per_token,
            log=context.log,
            total_steps=config.steps,
            gradients_may_overflow=precision.scales_loss,
            ranks=ranks,
            pulse=context.pulse,
        ),
        diagnostics_logger=DiagnosticsLogger(
            stage.config,
            model,
            make_input=stage.make_input,
            precision=precision,
            is_rank0=ranks.is_main,
            compression_overflows=overflow_counts(wrapped),
        ),
        profiler=Profiler(
            config.profile,
            context.place.attempt_dir / layout.PROFILES,
            rank=ranks.rank,
            device=ranks.device,
            log=context.log,
        ),
    )
    context.events.write(_started(context, stage, course, device_name, model))
    if how_it_began is not None:
        context.events.write(how_it_began)
    training.announce()
    return training


def _started(
    context: RunContext, stage: OpenStage, course: Course, device_name: str, model: Decoder
) -> Started:
    config, ranks, data = context.config, context.ranks, course.data[0]
    return Started(
        time=time.time(),
        attempt=context.place.attempt,
        world_size=ranks.world_size,
        device=device_name,
        parameters=(
            parts.counts_of(model)[0]
            if config.parts is not None and config.parts.model is not None
            else parameter_counts(config.model).total
        ),
        tokens_per_step=stage.config.tokens_per_step,
        total_steps=config.steps,
        data_digest=stage.data.digest,
        validation_digest=data.validation_digest,
        held_out=data.held_out.describe(data.validation_tokens),
        versions=environment.versions(),
        host=environment.host(ranks.device),
        code=layout.code_digest(),
        compile=config.compile.scope,
        bucket_mb=(
            ranks.bucket_mb(config.parallel)
            if ranks.world_size > 1 and config.parallel.shard == "none"
            else None
        ),
        startup_s=context.timeline.phases,
    )


def resume(
    context: RunContext,
    course: Course,
    model: nn.Module,
    optimizer: torch.optim.Optimizer,
    update_step: UpdateStep,
    average: WeightAverage | None = None,
) -> tuple[TrainProgress, Record | None]:
    """Resume from the newest checkpoint that verifies, if there is one.

    Returns:
        How far the run has come, and what to record.
    """
    place, log = context.place, context.log
    chosen, skipped = context.ranks.on_rank0(lambda: _choose(context))
    if chosen is None:
        if context.config.forked_at is not None:
            raise BadConfig(
                "forked_at is set, but this run starts from no checkpoint; leave it out, and fork "
                "the run that it continues"
            )
        if not skipped:
            return TrainProgress(), None
        message = f"no checkpoint verifies, so training starts from step 0: {'; '.join(skipped)}"
        log(f"warning: {message}")
        warning = Warning_(time=time.time(), code="no_valid_checkpoint", message=message, step=0)
        return TrainProgress(), warning
    directory = Path(chosen)
    own = directory.is_relative_to(place.run_dir)
    fresh = not own and context.config.optimizer_state == "fresh"
    progress, saved = state.restore(
        directory,
        model=model,
        optimizer=optimizer,
        update_step=update_step,
        rank=context.ranks.rank,
        config=context.config,
        fresh_optimizer=fresh,
    )
    if average is not None and not fresh and (note := average.restore(directory, saved)):
        log(note)
        context.events.write(Notice(time=time.time(), phase="average", message=note))
    progress.position = state.data_position(saved)
    held_out = saved["data"]["validation_digest"]
    if own:
        # A fork may change its data; the same run may not.
        course.at(progress.step)[1].require_same(digest=saved["data"]["digest"])
        course.data[0].require_same(validation_digest=held_out)
        for name, digest in course.tasks.items():
            if saved.get("tasks", {}).get(name, digest) != digest:
                raise BadData(f"evals.{name}: its items changed; restore them, or fork the run")
        chosen = str(directory.relative_to(place.run_dir))
    elif course.data[0].validation_digest != held_out:
        progress.best_val_loss = None  # A loss on another set is neither better nor worse.
        message = f"not the held-out set of {chosen}: its best val/loss does not count here"
        log(message)
        context.events.write(Notice(time=time.time(), phase="data", message=message))
    log(f"resumed at step {progress.step} from {chosen}")
    for reason in skipped:
        log(f"warning: skipped a newer checkpoint: {reason}")
    changed = environment.changes(saved.get("versions", {}), environment.versions())
    if changed:
        words = f"the checkpoint was saved in another environment: {', '.join(changed)}"
        if own and context.config.deterministic:
            raise BadConfig(
                f"{words}. deterministic is true, and losses may differ between environments. "
                "Resume it where its versions are installed, or fork it"
            )
        log(f"warning: {words}")
    resumed = Resumed(
        time=time.time(), step=progress.step, checkpoint=chosen, skipped=skipped, changed=changed
    )
    return progress, resumed


def _choose(context: RunContext) -> tuple[str | None, list[str]]:
    place = context.place
    choice = choose_checkpoint(place.run_dir, place.attempt_dir, place.note)
    return (None if choice.directory is None else str(choice.directory), list(choice.skipped))


@dataclass(frozen=True)
class StepParts:
    model: Decoder
    optimizer: torch.optim.Optimizer
    update_step: UpdateStep
    loss: TokenLoss


def build_parts(config: TrainConfig, ranks: Ranks, precision: Precision) -> StepParts:
    """Build the parts that a checkpoint is restored into: of a run, a benchmark or a memory trace.

    ``config`` is resolved for the device.

    Raises:
        BadConfig: this machine cannot run one of them.
    """
    replaced, parallel, shard = config.parts, config.parallel, None
    if sharding.divides(parallel, ranks):
        operands = precision.operands if config.gathers_operands else torch.float32
        shard = partial(sharding.shard, config=parallel, ranks=ranks, operands=operands)
    model = build_model_of(config, device=ranks.device, shard=shard)
    if replaced is None or replaced.optimizer is None:
        optimizer = build_optimizer(model, config.optimizer)
    else:
        optimizer = replaced_optimizer(replaced.optimizer, model, config.optimizer)
    return StepParts(
        model=model,
        optimizer=optimizer,
        update_step=UpdateStep(
            ranks.device,
            loss_scale=config.precision.loss_scale if precision.scales_loss else None,
            skip_step=config.skip_step,
        ),
        loss=build_token_loss(config, precision, ranks.device),
    )


def prepare_model(
    model: Decoder, config: TrainConfig, ranks: Ranks, *, accumulates: bool
) -> Accumulation:
    """Make the model recompute and compile as in the config, in place, before DDP wraps it.

    The order matters: layers are converted, then checkpointed, then compiled. DDP comes last: it
    must wrap the weights on which all ranks agree.
    """
    recompute_activations(model, config.activation_checkpointing)
    compile_model(model, config.compile)
    in_buckets = ranks.world_size > 1 and accumulates and config.parallel.shard == "none"
    return Accumulation(model, config.compile, in_buckets=in_buckets)
