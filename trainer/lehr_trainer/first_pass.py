"""A rehearsal on mock batches, before anything is at stake.

Memory that does not suffice and graphs that do not compile show here, not in the midst of a
run: forward and backward, beside the optimizer's state, in every shape that training will meet
(P1's last tenth has sequences of 4,096 tokens, and would run out of memory after days). Runs that
start together compile once (A15); attention that falls to the slow kernel is said once, with the
cure (A14). Afterwards everything is as if nothing had happened, to the bit.
"""

from __future__ import annotations

import json
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, nullcontext

import torch
from torch import Tensor, nn

from lehr_trainer.compile_turn import Notify, compile_key, compile_turn
from lehr_trainer.compiling import Accumulation
from lehr_trainer.config import GPT2Config, TrainConfig
from lehr_trainer.losses_variants import Loss
from lehr_trainer.models.anatomy import Decoder
from lehr_trainer.models.attention import AttentionCall, attention_backend, math_fallback
from lehr_trainer.models.documents import Read
from lehr_trainer.optim import set_lr_factor
from lehr_trainer.precision import Precision
from lehr_trainer.records import Notice, Warning_
from lehr_trainer.session import Session
from lehr_trainer.state import restore_generators, save_generators

Shape = tuple[int, int]
"""[B, T] of one rank's forward pass."""


def first_pass(
    session: Session,
    model: Decoder,
    optimizer: torch.optim.Optimizer,
    *,
    accumulation: Accumulation,
    precision: Precision,
    loss: Loss,
    read: Read,
    step: int,
) -> None:
    """Rehearse where something can go wrong: on a GPU, compiled, or with several lengths.

    The model must not be wrapped yet: within the turn to compile nothing may wait for another
    rank. ``step`` is how many were taken before.
    """
    config, device = session.config, session.ranks.device
    shapes = config.batch.shapes_ahead(config.steps, session.ranks.world_size, taken=step)
    compiles = config.compile.scope != "none"
    with attention_backend(config.attention, device):
        _warn_of_math(session, precision, shapes)
        if shapes and (compiles or device.type == "cuda" or len(shapes) > 1):
            key = _key(config, precision, shapes)
            with compile_turn(key, _notify(session)) if compiles else nullcontext():
                rehearse(model, optimizer, shapes, accumulation, precision, loss, read)


def rehearse(
    model: Decoder,
    optimizer: torch.optim.Optimizer,
    shapes: Sequence[Shape],
    accumulation: Accumulation,
    precision: Precision,
    loss: Loss,
    read: Read,
) -> None:
    """Forward and backward in each of ``shapes`` as in the midst of training; then undo it."""
    generators = json.loads(save_generators())
    parameters = list(model.parameters())
    buffers = [(buffer, buffer.clone()) for buffer in model.buffers()]
    was_training = model.training
    model.train()
    with _all_optimizer_state(optimizer):
        for shape in shapes:
            accumulation.begin_micro_step()
            tokens = _mock(shape, model.head_weight.shape[0], parameters[0].device)
            with precision.autocast():
                hidden = model(*read(tokens))
            torch.autograd.backward(loss(hidden, model.head_weight, tokens))
            # A step's gradients are gone, or zero in their own memory, when the next begins.
            del hidden
            accumulation.clear(optimizer)
    model.train(was_training)
    with torch.no_grad():
        for buffer, before in buffers:
            buffer.copy_(before)
    restore_generators(generators)


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


def _mock(shape: Shape, vocabulary: int, device: torch.device) -> Tensor:
    """Tokens drawn from no generator."""
    flat = torch.arange(shape[0] * shape[1], device=device) % vocabulary
    return flat.view(shape)


def _key(config: TrainConfig, precision: Precision, shapes: list[Shape]) -> str:
    shaping = config.model_dump(
        mode="json", include={"model", "compile", "recompute", "attention", "precision", "loss"}
    )
    return compile_key(shaping, shapes, str(precision.operands), str(precision.device.type))


def _notify(session: Session) -> Notify:
    def notify(phase: str, message: str, done: float | None) -> None:
        session.say(f"{phase}: {message}")
        session.events.write(Notice(time=time.time(), phase=phase, message=message, done=done))

    return notify


def _warn_of_math(session: Session, precision: Precision, shapes: list[Shape]) -> None:
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
