"""A rehearsal on mock batches, before anything is at stake.

Too little memory and graphs that do not compile show here, not in the midst of a run. It does
forward and backward, beside the optimizer's state, in every shape of the training: a last tenth
with sequences of 4,096 tokens would otherwise run out of memory after days. Runs that start
together compile once; attention that falls back to the slow kernel is reported once, with the
remedy. Afterwards everything is as if nothing had happened, to the bit.
"""

from __future__ import annotations

import json
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from lehr_trainer.checkpointing.state import restore_generators, save_generators
from lehr_trainer.configs.train import GPT2Config, TrainConfig
from lehr_trainer.contract.records import Notice, Warning_
from lehr_trainer.losses.variants import Loss
from lehr_trainer.models.attention import AttentionCall, attention_backend, math_fallback
from lehr_trainer.models.documents import InputFn
from lehr_trainer.models.fp8 import unmoved_fp8_state
from lehr_trainer.models.module_map import Decoder
from lehr_trainer.optim import set_lr_factor
from lehr_trainer.runtime.compile_lock import Notify, compile_key, compile_lock
from lehr_trainer.runtime.compiling import Accumulation
from lehr_trainer.runtime.compression import overflow_count
from lehr_trainer.runtime.context import RunContext
from lehr_trainer.runtime.precision import Precision

BatchShape = tuple[int, int]
"""[B, T] of one rank's forward pass."""


@dataclass(frozen=True)
class DryRun:
    """Mock batches through a model that is to be trained."""

    model: Decoder
    optimizer: torch.optim.Optimizer
    accumulation: Accumulation
    precision: Precision
    loss: Loss
    read: InputFn

    def act(self, shapes: Sequence[BatchShape], wrapped: nn.Module | None = None) -> None:
        """Forward and backward in each of ``shapes`` as in the midst of training; then undo it.

        Through ``wrapped``, if given: gradients are then sent, and every rank has to act.
        """
        model, optimizer = self.model, self.optimizer
        generators = json.loads(save_generators())
        overflows = None if wrapped is None else overflow_count(wrapped)
        kept = [*model.buffers(), *([] if overflows is None else [overflows])]
        before = [tensor.clone() for tensor in kept]
        was_training = model.training
        device = model.head_weight.device
        model.train()
        with _all_optimizer_state(optimizer), unmoved_fp8_state(model):
            for shape in shapes:
                self.accumulation.begin_micro_step()
                tokens = _mock(shape, model.head_weight.shape[0], device)
                with self.precision.autocast():
                    hidden = (wrapped or model)(*self.read(tokens))
                torch.autograd.backward(self.loss(hidden, model.head_weight, tokens))
                # A step's gradients are gone, or zero in their own memory, when the next begins.
                del hidden
                self.accumulation.clear(optimizer)
        model.train(was_training)
        with torch.no_grad():
            for tensor, value in zip(kept, before, strict=True):
                tensor.copy_(value)
        restore_generators(generators)


def compile_under_lock(session: RunContext, rehearsal: DryRun, *, step: int) -> None:
    """Warn of the slow attention kernel; then compile, if the config does, once for all runs.

    The model must not be wrapped yet: within the turn to compile nothing may wait for another
    rank. ``step`` is how many were taken before.
    """
    config = session.config
    shapes = _shapes(session, step)
    with attention_backend(config.attention, session.ranks.device):
        _warn_of_math(session, rehearsal.precision, shapes)
        if shapes and config.compile.scope != "none":
            with compile_lock(_key(config, rehearsal.precision, shapes), _notify(session)):
                rehearsal.act(shapes)


def dry_run_wrapped(
    session: RunContext, rehearsal: DryRun, wrapped: nn.Module, *, step: int
) -> None:
    """Rehearse what is trained, where it was not yet: on a GPU, in several lengths, among ranks.

    Among ranks always. DDP's buckets take the memory of all gradients, in the forward pass too;
    and DDP cuts them anew after its first backward pass, by the order in which gradients came.
    Sums over three ranks or more round by where a value lies in its bucket, so that a resumed
    run's first step would differ from the undisturbed run's if it had the first cut.
    """
    config, ranks = session.config, session.ranks
    shapes = _shapes(session, step)
    among_ranks = wrapped is not rehearsal.model
    needed = among_ranks or (
        config.compile.scope == "none" and (ranks.device.type == "cuda" or len(shapes) > 1)
    )
    if shapes and needed:
        with attention_backend(config.attention, ranks.device):
            rehearsal.act(shapes, wrapped)


def _shapes(session: RunContext, step: int) -> list[BatchShape]:
    config = session.config
    return config.batch.shapes_ahead(config.steps, session.ranks.world_size, taken=step)


@contextmanager
def _all_optimizer_state(optimizer: torch.optim.Optimizer) -> Iterator[None]:
    """With the state that the first step will allocate; what was there before is not touched.

    It comes of a step at a learning rate of 0, which moves no weight, from gradients that are 1:
    zeros could be divided by zero.
    """
    parameters: list[nn.Parameter] = [
        p for group in optimizer.param_groups for p in group["params"]
    ]
    lacking = {p for p in parameters if not optimizer.state.get(p)}
    gradients = [p.grad for p in parameters]
    if lacking:
        for parameter in parameters:
            parameter.grad = torch.ones_like(parameter) if parameter in lacking else None
        set_lr_factor(optimizer, 0.0)
        optimizer.step()
        set_lr_factor(optimizer, 1.0)
        for parameter, gradient in zip(parameters, gradients, strict=True):
            parameter.grad = gradient
    try:
        yield
    finally:
        for parameter in lacking:
            optimizer.state.pop(parameter, None)


def _mock(shape: BatchShape, vocabulary: int, device: torch.device) -> Tensor:
    """Tokens drawn from no generator."""
    flat = torch.arange(shape[0] * shape[1], device=device) % vocabulary
    return flat.view(shape)


def _key(config: TrainConfig, precision: Precision, shapes: list[BatchShape]) -> str:
    shaping = config.model_dump(
        mode="json",
        include={"model", "compile", "activation_checkpointing", "attention", "precision", "loss"},
    )
    return compile_key(shaping, shapes, str(precision.operands), str(precision.device.type))


def _notify(session: RunContext) -> Notify:
    def notify(phase: str, message: str, done: float | None) -> None:
        session.say(f"{phase}: {message}")
        session.events.write(Notice(time=time.time(), phase=phase, message=message, done=done))

    return notify


def _warn_of_math(session: RunContext, precision: Precision, shapes: list[BatchShape]) -> None:
    config = session.config
    if config.attention.document_masking or config.attention.backend == "math":
        return
    model = config.model
    heads = model.num_attention_heads
    for micro_batch, length in shapes:
        message = math_fallback(
            AttentionCall(
                device=precision.device,
                dtype=precision.operands,
                batch=micro_batch,
                heads=heads,
                kv_heads=heads if isinstance(model, GPT2Config) else model.num_key_value_heads,
                length=length,
                head_size=model.hidden_size // heads,
            )
        )
        if message is not None:
            session.say(f"warning: {message}")
            session.events.write(
                Warning_(time=time.time(), code="math_attention", message=message, step=0)
            )
            return
