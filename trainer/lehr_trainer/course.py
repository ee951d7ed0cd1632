"""The course of a training: what each of its stages brings, from its data to its loss.

A run without stages has one. Weights, optimizer and position go on from stage to stage; the rest
is made anew when a stage begins, as it is when a run resumes there.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import torch

from lehr_trainer import parts
from lehr_trainer.checkpointing.checkpoint import trained_on
from lehr_trainer.checkpointing.state import TrainProgress
from lehr_trainer.configs.stages import (
    StageSpan,
    sharing_problem,
    with_all_positions,
    with_same_data,
)
from lehr_trainer.configs.train import LlamaConfig, TrainConfig
from lehr_trainer.contract import layout
from lehr_trainer.contract.records import Notice
from lehr_trainer.data.loader import Loader
from lehr_trainer.data.position import DataPosition
from lehr_trainer.data.prepare import prepare_dataset
from lehr_trainer.data.token_dataset import PreparedData
from lehr_trainer.data.tokens import open_stream, position_after
from lehr_trainer.dry_run import BatchShape, DryRun
from lehr_trainer.errors import BadConfig, BadData
from lehr_trainer.evaluate import ValidationSet
from lehr_trainer.losses.variants import TokenLoss, build_loss, of_targets
from lehr_trainer.models.documents import InputFn, make_input_fn
from lehr_trainer.models.llama import Llama
from lehr_trainer.models.module_map import Decoder
from lehr_trainer.optim import build_optimizer
from lehr_trainer.planning.counts import flops_per_token
from lehr_trainer.runtime.compiling import Accumulation
from lehr_trainer.runtime.distributed import Ranks
from lehr_trainer.runtime.environment import RunContext
from lehr_trainer.runtime.precision import Precision


@dataclass(frozen=True)
class OpenStage:
    """A stage that is trained now."""

    config: TrainConfig
    data: PreparedData
    loader: Loader
    scored: Mapping[str, ValidationSet]
    """What an evaluation scores, by the prefix of its metrics: the held-out set of the first
    stage, at its length, and that of this one, if it is another."""
    make_input: InputFn
    loss: TokenLoss
    flops_per_token: Callable[[int], float]
    """By the step, from 0."""
    span: StageSpan


class Course:
    """The stages of a run, and their data."""

    def __init__(self, context: RunContext, precision: Precision) -> None:
        """Check that the ranks can share each stage's batch.

        Raises:
            BadConfig: they cannot.
        """
        self._context, self._precision = context, precision
        self.stages = context.config.course
        self.data: list[PreparedData] = []
        """Of each stage, once it is prepared."""
        self.tasks: dict[str, str] = {}
        """Digests of the tasks' items, once they are read."""
        ranks = context.ranks
        if problem := sharing_problem(context.config.spans, ranks.world_size):
            raise BadConfig(problem)
        for span, config in self.stages:
            try:
                config.parallel.check_accumulation(
                    config.batch.most_micro_steps(config.steps, ranks.world_size)
                )
            except ValueError as error:
                raise BadConfig(f"{span.name and f'stage {span.name}: '}{error}") from error

    @property
    def accumulates(self) -> bool:
        """Whether a step of some stage has several micro-batches on each rank."""
        return any(accumulates(config, self._context.ranks) for _, config in self.stages)

    def follow(self, step: int, model: Decoder, optimizer: torch.optim.Optimizer) -> None:
        """Set what the stage of the next step changes of a model and an optimizer that go on."""
        config = with_all_positions(self.stages[self.number_at(step)].config, self.stages)
        if isinstance(model, Llama) and isinstance(config.model, LlamaConfig):
            model.set_rotary(config.model)
        if config.parts is None or config.parts.optimizer is None:
            groups = build_optimizer(model, config.optimizer).param_groups
            for group, new in zip(optimizer.param_groups, groups, strict=True):
                group.update({name: value for name, value in new.items() if name != "params"})

    def dry_runs(
        self,
        step: int,
        model: Decoder,
        optimizer: torch.optim.Optimizer,
        accumulation: Accumulation,
    ) -> list[tuple[DryRun, list[BatchShape]]]:
        """Return a dry run of each stage from ``step`` on, and the shapes of its batches."""
        ranks = self._context.ranks
        return [
            (
                DryRun(
                    model,
                    optimizer,
                    accumulation,
                    self._precision,
                    build_token_loss(config, self._precision, ranks.device),
                    self.input_fn(number),
                    self.accumulates,
                    config,
                ),
                config.batch.shapes_ahead(config.steps, ranks.world_size, taken=step),
            )
            for number, (_, config) in enumerate(self.stages)
            if number >= self.number_at(step)
        ]

    @property
    def last_step(self) -> int:
        return self.stages[-1].span.last

    def number_at(self, step: int) -> int:
        """Return the number, from 0, of the stage that takes the step after ``step`` steps."""
        numbers = (n for n, stage in enumerate(self.stages) if step < stage.span.last)
        return next(numbers, len(self.stages) - 1)

    def described(self) -> dict[str, Any]:
        """Return what a checkpoint holds beside the config of its stage."""
        whole = self._context.config
        tasks = {"tasks": self.tasks} if self.tasks else {}
        if not whole.stages:
            return tasks
        prepared = {one.digest for data in self.data for one in data.corpora.values()}
        return {"course": whole.model_dump(mode="json"), "corpora": sorted(prepared), **tasks}

    def at(self, step: int) -> tuple[TrainConfig, PreparedData]:
        """Return config and data of the last of so many steps."""
        number = self.number_at(max(0, step - 1))
        return self.stages[number].config, self.data[number]

    def prepare(self) -> None:
        """Prepare the data of all stages: a corpus that is missing shows before the first step.

        Raises:
            BadData: a corpus is missing, shorter than a block, or its held-out set than a sequence.
        """
        prepared: dict[str, PreparedData] = {}
        for group in with_same_data(self.stages):
            prepared |= dict.fromkeys((span.name for span, _ in group), self._prepare(*group[0]))
        self.data = [prepared[span.name] for span, _ in self.stages]
        # A later stage is opened once: too little data shows before the first step.
        for number, (span, config) in enumerate(self.stages[1:], 1):
            try:
                open_stream(self.data[number], config.batch, config.seed, "memmap", DataPosition())
                self._scored(number)
            except BadData as error:
                raise BadData(f"stage {span.name}: {error}") from None

    def skip(self, progress: TrainProgress, through: int) -> None:
        """Move the position past the data of the steps until ``through``."""
        for number, (span, config) in enumerate(self.stages):
            steps = min(through, span.last) - max(progress.step, span.first)
            if steps > 0:
                progress.position = position_after(
                    self.data[number], config.batch, config.seed, progress.position, steps
                )

    def open(self, model: Decoder, progress: TrainProgress) -> OpenStage:
        """Open the stage that takes the next step."""
        number, ranks = self.number_at(progress.step), self._context.ranks
        config, data = self.stages[number].config, self.data[number]
        loader = Loader(
            data,
            config.batch,
            seed=config.seed,
            rank=ranks.rank,
            world_size=ranks.world_size,
            device=ranks.device,
            workers=config.data.workers,
            prefetch=config.data.prefetch,
            loading=config.data.loading,
            steps=config.steps,
            first_step=progress.step,
            position=progress.position,
            mask_document_starts=config.data.loss_mask == "document_starts",
        )
        if progress.step < config.steps:
            loader.batch(progress.step)  # Made now, so that the first step is as long as any other.
        return OpenStage(
            span=self.stages[number].span,
            config=config,
            data=data,
            loader=loader,
            scored=self._scored(number),
            make_input=self.input_fn(number),
            loss=build_token_loss(config, self._precision, ranks.device),
            flops_per_token=_flops_per_token(config, model),
        )

    def input_fn(self, number: int) -> InputFn:
        masks = self.stages[number].config.attention.document_masking
        return make_input_fn(self.data[number].eos_id if masks else None)

    def _prepare(self, span: StageSpan, config: TrainConfig) -> PreparedData:
        context, place = self._context, self._context.place

        def notify(phase: str, message: str, done: float | None) -> None:
            context.log(f"{phase}: {message}")
            context.events.write(Notice(time=time.time(), phase=phase, message=message, done=done))

        try:
            return prepare_dataset(
                config.data,
                config.validation,
                config.model.vocab_size,
                layout.data_root(),
                notify,
                started_by=place.run_dir.name,
                trained_on=trained_on(place.run_dir, place.attempt_dir, place.note),
                seen=place.note.corpus_checked,
            )
        except BadData as error:
            if not span.first:
                raise
            raise type(error)(f"stage {span.name}: {error}") from None

    def _scored(self, number: int) -> dict[str, ValidationSet]:
        scored = {"val": self._validation_set(0)}
        own, first = self.stages[number], self.stages[0]
        length = own.config.batch.sequence_length
        another = self.data[number].validation_digest != self.data[0].validation_digest
        if another or length != first.config.batch.sequence_length:
            scored[f"val/{own.span.name}"] = self._validation_set(number)
        return scored

    def _validation_set(self, number: int) -> ValidationSet:
        config, ranks = self.stages[number].config, self._context.ranks
        share = config.batch.sequences // ranks.world_size
        return ValidationSet(
            self.data[number],
            config.batch.sequence_length,
            config.validation.tokens,
            ranks.rank,
            ranks.world_size,
            micro_batch=config.validation.micro_batch or config.batch.micro_batch or share,
            device=ranks.device,
            padded=config.compile.compiles or config.parallel.shard != "none",
        )


def accumulates(config: TrainConfig, ranks: Ranks) -> bool:
    """Return whether a step has several micro-batches on each rank."""
    return config.batch.most_micro_steps(config.steps, ranks.world_size) > 1


def build_token_loss(config: TrainConfig, precision: Precision, device: torch.device) -> TokenLoss:
    """Build the loss of a config: Lehr's, or the project's."""
    if config.parts is None or config.parts.loss is None:
        loss = build_loss(config.loss, precision.operands, device, config.model.logit_softcap)
    else:
        loss = parts.replaced_loss(config.parts.loss, masks_tokens=config.masks_tokens)
    return of_targets(loss) if config.masks_tokens else loss


def _flops_per_token(config: TrainConfig, model: Decoder) -> Callable[[int], float]:
    """Return the FLOPs of a token by the step; those of a project's model are estimated."""
    if config.parts is not None and config.parts.model is not None:
        estimated = parts.flops_per_token(*parts.counts_of(model))
        return lambda _step: estimated
    return lambda step: flops_per_token(
        config.model, config.batch.at(step, config.steps).sequence_length
    )
