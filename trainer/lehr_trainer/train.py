"""The training loop. Read from the top: this is all that happens to a model in a run.

``TrainStep`` makes one optimizer step, ``Training.run`` is the loop around it; what happens before
the first step is in assemble.py. Each technique lives in the module that it is imported from.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import NamedTuple, Protocol

import torch
from torch import Tensor, nn

from lehr_trainer.checkpointing.checkpointer import Checkpointer
from lehr_trainer.checkpointing.retention import OF_STAGE
from lehr_trainer.checkpointing.state import TrainProgress
from lehr_trainer.configs.train import TrainConfig
from lehr_trainer.contract.records import Evaluation, Finished, LogFn, Notice, Stopping, Warning_
from lehr_trainer.course import Course, OpenStage
from lehr_trainer.data.loader import Loader, added
from lehr_trainer.diagnostics.diagnostics_logger import Batch, DiagnosticsLogger, every
from lehr_trainer.diagnostics.profiling import Profiler
from lehr_trainer.errors import DiskFull
from lehr_trainer.evaluate import evaluate
from lehr_trainer.losses.chunked import LossSum
from lehr_trainer.losses.variants import TokenLoss
from lehr_trainer.metrics_logger import MetricsLogger
from lehr_trainer.models.attention import attention_backend
from lehr_trainer.models.documents import InputFn
from lehr_trainer.models.module_map import Decoder
from lehr_trainer.optim import lr_factor, set_lr_factor
from lehr_trainer.runtime.compiling import Accumulation
from lehr_trainer.runtime.distributed import Ranks
from lehr_trainer.runtime.event_stream import EventStream
from lehr_trainer.runtime.precision import Precision
from lehr_trainer.step_control import StepControl, StopReason
from lehr_trainer.tasks.scoring import Tasks
from lehr_trainer.update_step import UpdateStep
from lehr_trainer.weight_average import WeightAverage


class MicroBatches(Protocol):
    """Source of a step's batches: the loader, or a benchmark's replacement for it."""

    def micro_steps(self, step: int, /) -> int: ...

    def batch(self, step: int, micro_step: int, /) -> Batch: ...

    @property
    def counted(self) -> int | None:
        """How many of this rank's targets count in the step whose micro-step 0 was taken last;
        None if all do.
        """


class Phases(Protocol):
    """A listener to the parts of a step: a profiler, or a memory trace."""

    def phase(self, name: str) -> AbstractContextManager[object]: ...


class StepLoss(NamedTuple):
    """The loss of a step, over all its micro-batches and ranks."""

    mean: Tensor
    """Mean cross entropy of the tokens that count, in nats."""
    z_loss: Tensor | None
    """Mean z-loss of the same tokens; None if there is none."""
    counted: int | None
    """How many targets count; None if all do."""
    batch: Batch
    """The rank's last micro-batch."""


@dataclass
class TrainStep:
    """One optimizer step: ``backward`` over its micro-batches, then ``update``."""

    config: TrainConfig
    ranks: Ranks
    precision: Precision
    model: Decoder
    wrapped: nn.Module
    """The model; with several ranks it is wrapped in DDP, which averages gradients."""
    make_input: InputFn
    """Turns tokens into the model's arguments; with document masking it adds the documents."""
    loss: TokenLoss
    optimizer: torch.optim.Optimizer
    update_step: UpdateStep
    accumulation: Accumulation
    profiler: Phases

    def backward(self, step: int, batches: MicroBatches) -> StepLoss:
        """Compute the gradients of a step: of its mean loss over all tokens that count.

        They are 0 if none counts.
        """
        phase = self.profiler.phase
        loss = torch.zeros((), device=self.ranks.device)
        z_loss = torch.zeros_like(loss) if self.config.loss.z_loss else None
        micro_steps = batches.micro_steps(step)
        count_all: Callable[[], list[int]] | None = None
        counted: int | None = None
        for micro_step in range(micro_steps):
            with phase("data"):
                inputs, targets = batches.batch(step, micro_step)
            if micro_step == 0 and batches.counted is not None:
                count_all = self.ranks.begin_sum(batches.counted)
            is_last = micro_step + 1 == micro_steps
            self.accumulation.begin_micro_step()
            with self.ranks.no_sync_while(self.wrapped, keep=not is_last):
                with phase("forward"):
                    part = self.loss_of(self.wrapped, inputs, targets)
                if count_all is not None and counted is None:
                    (counted,) = count_all()
                # Means over micro-batches are taken here, over ranks by DDP. So each batch is
                # divided by the mean of their counts, and each token has the same share.
                batches_of_step = micro_steps * self.ranks.world_size
                count = part.count if counted is None else max(1, counted) / batches_of_step
                share = part.total / count / micro_steps
                with phase("backward"):
                    torch.autograd.backward(self.update_step.scaled(share))
            loss += share.detach()
            if z_loss is not None and part.z_loss is not None:
                z_loss += part.z_loss / count / micro_steps
        if z_loss is not None:
            loss, z_loss = self.ranks.mean(torch.stack([loss - z_loss, z_loss]))
        else:
            loss = self.ranks.mean(loss)
        return StepLoss(loss, z_loss, counted, (inputs, targets))

    def update(self, loss: Tensor, counted: int | None = None) -> Tensor:
        """Clip, then change the weights; return the gradient norm before clipping.

        The weights do not change if a gradient is not finite, if the step is an outlier that
        ``skip_step`` leaves out, or if no token counts: weight decay alone is no step.
        """
        grad_norm = self.update_step.clip(self.model, self.config.grad_clip)
        if counted != 0:
            self.update_step.step(self.optimizer, loss, grad_norm)
        self.accumulation.clear(self.optimizer)
        return grad_norm

    def loss_of(self, model: nn.Module, inputs: Tensor, targets: Tensor) -> LossSum:
        """Loss of a batch. The model computes in autocast; the loss is outside of it."""
        with self.precision.autocast():
            hidden = model(*self.make_input(inputs))
        return self.loss(hidden, self.model.head_weight, targets)

    def unwrapped_loss(self, inputs: Tensor, targets: Tensor) -> Tensor:
        """Mean loss of the model itself, without the ranks' wrapper."""
        return self.loss_of(self.model, inputs, targets).mean


@dataclass
class Training(TrainStep):
    """The training loop: a step, and everything else that the loop uses."""

    events: EventStream
    log: LogFn
    course: Course
    stage: OpenStage
    progress: TrainProgress
    average: WeightAverage | None
    tasks: Tasks
    step_control: StepControl
    checkpointer: Checkpointer
    metrics_logger: MetricsLogger
    diagnostics_logger: DiagnosticsLogger
    profiler: Profiler

    @property
    def loader(self) -> Loader:
        return self.stage.loader

    def run(self) -> Finished:
        """Train each stage to its end."""
        try:
            self.wrapped.train()
            self.metrics_logger.start_at(self.progress.step, self.progress.tokens)
            while True:
                with attention_backend(self.config.attention, self.ranks.device):
                    stopped = self._train_stage()
                if stopped is not None:
                    return stopped
                if self.progress.step == self.course.last_step:
                    break
                self.progress.position = self.loader.position(self.progress.step)
                self.enter(self.course.open(self.model, self.progress))
            self.checkpointer.wait()
            self.metrics_logger.flush()
            step = self.progress.step
            return Finished(time=time.time(), step=step, outcome="completed")
        finally:
            self.loader.close()
            self.profiler.close()
            self.checkpointer.end()

    def enter(self, stage: OpenStage) -> None:
        """Go on with another stage."""
        self.loader.close()
        self.stage, self.config = stage, stage.config
        self.make_input, self.loss = stage.make_input, stage.loss
        self.course.follow(self.progress.step, self.model, self.optimizer)
        self.metrics_logger.enter(stage.config, stage.flops_per_token, self.progress)
        self.diagnostics_logger.enter(stage.config, stage.make_input)
        self.announce()

    def announce(self) -> None:
        """Record which stage begins or goes on, and what it leaves out of an epoch of its data."""
        step, now, span = self.progress.step, time.time(), self.stage.span
        if span.name:
            batch, first = span.batch, span.first + 1
            text = (
                f"stage {span.name}: steps {first:,} to {span.last:,}, "
                f"{batch.sequences:,} sequences of {batch.sequence_length:,} tokens a step"
            )
            self.log(text)
            self.events.write(Notice(time=now, phase="stage", message=text))
        for note in self.loader.stream.notes:
            self.log(f"warning: {note}")
            self.events.write(Warning_(time=now, code="tokens_left_out", message=note, step=step))

    def _train_stage(self) -> Finished | None:
        """Repeat: take a step, then evaluate, save and follow orders; returns if stopped."""
        config, progress = self.config, self.progress
        while progress.step < config.steps:
            self.take_step()
            step, ends = progress.step, progress.step == config.steps
            last = step == self.course.last_step

            val_loss = self.evaluate() if ends or every(config.validation.every, step) else None
            progress.remember_best(val_loss)
            if names := self.tasks.due(step, ends=ends):
                with self.metrics_logger.paused():
                    evaluation = self.tasks.evaluate(names, progress, self.average)
                self.events.write(evaluation)
                score = evaluation.values.get(str(config.checkpoint.keep_best))
                progress.scores = {} if score is None else {step: score}
            self.write_sample()
            decision = self.step_control.agree(
                self.ranks, save_failed=self.checkpointer.poll(), again=val_loss is not None
            )
            if decision.save_failed:
                self.checkpointer.wait()  # Raises the error of the failed save.

            # After the last step a run is complete, even if a stop was requested meanwhile.
            if decision.stop is not None and not last:
                return self.stop(decision.stop, val_loss)
            reason = self.reason_to_save(ordered=decision.checkpoint)
            if reason is not None:
                try:
                    self.save(reason, val_loss, final=last)
                except DiskFull as error:
                    # It waits for the save before, and the order to stop may have come meanwhile.
                    discard = None if last else self.step_control.agree(self.ranks).discard
                    if discard is None:
                        raise
                    self.checkpointer.warn_of(error)
                    return self.stop(discard, val_loss)
        return None

    def take_step(self) -> None:
        """Take one optimizer step and pass its figures to the loggers."""
        config, progress, step = self.config, self.progress, self.progress.step
        factor = lr_factor(config.schedule, step + 1, config.steps)
        set_lr_factor(self.optimizer, factor, config.optimizer.decay_factor(step / config.steps))
        waited_before = self.loader.waited_s
        diagnosed = self.diagnostics_logger.due(step + 1)

        loss, z_loss, counted, batch = self.backward(step, self.loader)
        digest = self.step_control.begin(self.ranks, self.loader.digest)
        with self.profiler.phase("update"):
            with self.metrics_logger.untimed(when=diagnosed):
                self.diagnostics_logger.before_update(step + 1, self.update_step)
            if self.average is not None:
                self.average.before_update()
            grad_norm = self.update(loss, counted)

        step += 1
        progress.step, progress.tokens = step, progress.tokens + config.tokens_per_step
        if self.average is not None:
            self.average.after_update(step)
        with self.metrics_logger.untimed(when=diagnosed):
            extra = self.diagnostics_logger.after_update(
                step, self.update_step, batch, self.unwrapped_loss
            )
        self.metrics_logger.note(
            step,
            loss,
            grad_norm,
            config.optimizer.lr * factor,
            self.loader.waited_s - waited_before,
            extra,
            data=lambda: {
                "data/digest": added(digest()),
                **self.loader.epochs(step),
                **({} if counted is None else {"train/loss_tokens": counted}),
            },
            always={} if z_loss is None else {"train/z_loss": z_loss},
        )
        with self.metrics_logger.untimed(when=self.profiler.recording):
            self.profiler.step()

    def evaluate(self) -> float:
        step = self.progress.step
        with self.metrics_logger.paused():
            values = self._held_out_values()
            if self.average is not None and self.average.ready:
                with self.average.swapped_in():
                    averaged = self._held_out_values()
                values |= self.average.evaluated(step, averaged)
        self.events.write(
            Evaluation(
                time=time.time(),
                step=step,
                tokens=self.progress.tokens,
                values=values,
                validation_digest=self.stage.scored["val"].digest,
            )
        )
        val_loss = values["val/loss"]
        self.log(f"step {step}  val/loss {val_loss:.4f}")
        return val_loss

    def _held_out_values(self) -> dict[str, float]:
        values: dict[str, float] = {}
        for prefix, held_out in self.stage.scored.items():
            values |= evaluate(
                self.model,
                held_out,
                prefix=prefix,
                make_input=self.make_input,
                ranks=self.ranks,
                precision=self.precision,
            )
        return values

    def write_sample(self) -> None:
        if every(self.config.diagnostics.sample.every, self.progress.step):
            with self.metrics_logger.paused():
                written = self.diagnostics_logger.write_sample(self.progress.step)
            if written is not None:
                self.events.write(written)

    # --- saving and stopping -----------------------------------------------------------------

    def reason_to_save(self, *, ordered: bool = False) -> str | None:
        """Return the reason for the ``checkpoint`` record; None if no save is due."""
        policy, step = self.config.checkpoint, self.progress.step
        if step == self.course.last_step:
            if policy.save_last:
                return "last"
        elif step == self.config.steps:
            return OF_STAGE
        if every(policy.every, step):
            return "interval"
        return "order" if ordered else None

    def save(self, reason: str, val_loss: float | None, *, final: bool = False) -> None:
        self.progress.position = self.loader.position(self.progress.step)
        with self.metrics_logger.paused():
            self.checkpointer.save(self.progress, reason, val_loss, final=final)

    def stop(self, stop: StopReason, val_loss: float | None) -> Finished:
        step = self.progress.step
        self.events.write(Stopping(time=time.time(), step=step, reason=stop.reason))
        self.log(f"stopping at step {step}: {stop.reason}")
        if stop.save:
            reason = self.reason_to_save() or "stop"
            self.save(reason, val_loss, final=True)
            self.checkpointer.wait()
        else:
            self.checkpointer.discard_pending_save()
        self.metrics_logger.flush()
        return Finished(time=time.time(), step=step, outcome="stopped", cause=stop.reason)
