"""Dry run on mock batches, before the first step.

Too little memory and graphs that do not compile show here, not in the middle of a run. It runs
forward and backward, beside the optimizer's state, in every shape of the training: a last tenth
with sequences of 4,096 tokens would otherwise run out of memory after days. Runs that start
together compile once. Attention that falls back to the slow kernel is reported once, with the
remedy. Afterwards all state is restored, bit for bit.
"""

from __future__ import annotations

import copy
import json
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel

from lehr_trainer.checkpointing.optimizer_state import is_replaced
from lehr_trainer.checkpointing.state import restore_generators, save_generators
from lehr_trainer.configs.train import TrainConfig
from lehr_trainer.contract.records import Notice, Notify, Warning_
from lehr_trainer.errors import BadConfig
from lehr_trainer.losses.variants import TokenLoss
from lehr_trainer.models.attention import AttentionCall, attention_backend, math_fallback
from lehr_trainer.models.documents import InputFn
from lehr_trainer.models.fp8 import unmoved_fp8_state
from lehr_trainer.models.module_map import Decoder
from lehr_trainer.optim import set_lr_factor
from lehr_trainer.runtime.compiling import Accumulation, compile_key, compile_lock
from lehr_trainer.runtime.distributed import Ranks, overflow_counts
from lehr_trainer.runtime.environment import RunContext
from lehr_trainer.runtime.precision import Precision

BatchShape = tuple[int, int]
"""[B, T] of one rank's forward pass."""


@dataclass(frozen=True)
class DryRun:
    """Runs mock batches through the model that will be trained."""

    model: Decoder
    optimizer: torch.optim.Optimizer
    accumulation: Accumulation
    precision: Precision
    loss: TokenLoss
    make_input: InputFn
    accumulates: bool
    """A step has several micro-batches: from the second on, gradients exist beside activations."""
    config: TrainConfig

    def run(
        self,
        shapes: Sequence[BatchShape],
        wrapped: nn.Module | None = None,
        *,
        beside_state: bool = True,
    ) -> None:
        """Run forward and backward in each of ``shapes``, as in training; then undo all changes.

        If ``wrapped`` is given, its gradients are reduced over ranks, so every rank must call this.
        The same holds for ``beside_state``: the optimizer's state is made by a step, in which
        ranks may exchange their updates.
        """
        model, optimizer = self.model, self.optimizer
        generators = json.loads(save_generators())
        overflows = None if wrapped is None else overflow_counts(wrapped)
        kept = [*model.buffers(), *([] if overflows is None else [overflows])]
        before = [tensor.clone() for tensor in kept]
        was_training = model.training
        device = model.head_weight.device
        model.train()
        state = _all_optimizer_state(optimizer) if beside_state else nullcontext()
        with state, unmoved_fp8_state(model):
            for index, shape in enumerate(shapes):
                # Tokens without a random generator.
                tokens = torch.arange(shape[0] * shape[1], device=device).view(shape)
                tokens %= model.head_weight.shape[0]
                # DDP moves gradients into its buckets when it first reduces them; from then on a
                # step is like any later one.
                if wrapped is not None and self.accumulates and index == 0:
                    self._micro_batch(wrapped, tokens, reduced=True)
                    self.accumulation.clear(optimizer)
                if self.accumulates:
                    self._micro_batch(wrapped, tokens, reduced=False)
                self._micro_batch(wrapped, tokens, reduced=True)
                # When the next step begins, the gradients of this one are dropped, or zeroed in
                # place.
                self.accumulation.clear(optimizer)
        model.train(was_training)
        with torch.no_grad():
            for tensor, value in zip(kept, before, strict=True):
                tensor.copy_(value)
        restore_generators(generators)

    def _micro_batch(self, wrapped: nn.Module | None, tokens: Tensor, *, reduced: bool) -> None:
        """Run forward and backward; without ``reduced`` gradients stay on this rank."""
        model = wrapped or self.model
        self.accumulation.begin_micro_step()
        with Ranks.no_sync_while(model, keep=not reduced):
            with self.precision.autocast():
                hidden = model(*self.make_input(tokens))
            torch.autograd.backward(self.loss(hidden, self.model.head_weight, tokens).mean)
        if reduced and isinstance(wrapped, DistributedDataParallel) and not wrapped.static_graph:
            self._require_gradients()

    def _require_gradients(self) -> None:
        """Refuse unused parameters: DDP would wait for their gradients in the next forward pass.

        Raises:
            BadConfig: there are some.
        """
        named = self.model.named_parameters()
        if unused := [name for name, p in named if p.requires_grad and p.grad is None]:
            raise BadConfig(
                f"the loss does not depend on {len(unused)} trained parameters, the first is "
                f"{unused[0]}, but several ranks wait for the gradient of each one. Freeze them by "
                "requires_grad_(False), remove them, or set parallel.static_graph: true"
            )


def compile_under_lock(context: RunContext, dry_run: DryRun, shapes: Sequence[BatchShape]) -> None:
    """Warn of the slow attention kernel; then compile once for all runs, if the config asks for it.

    The model must not be wrapped yet: under the compile lock nothing may wait for another rank.
    So with several ranks the optimizer takes no step here; ``dry_run_wrapped`` follows, and has its
    state.
    """
    config, alone = dry_run.config, context.ranks.world_size == 1
    if not alone and config.parallel.shard != "none":
        shapes = ()  # Its forward pass waits for the other ranks, so each rank compiles by itself.
    with attention_backend(config.attention, context.ranks.device):
        _warn_of_math(context, dry_run, shapes)
        if shapes and config.compile.compiles:
            with compile_lock(_key(config, dry_run.precision, shapes), _notify(context)):
                dry_run.run(shapes, beside_state=alone)


def dry_run_wrapped(
    context: RunContext, dry_run: DryRun, wrapped: nn.Module, shapes: Sequence[BatchShape]
) -> None:
    """Dry-run the wrapped model where the unwrapped one did not suffice.

    That is on a GPU, with several sequence lengths, and always with several ranks. DDP's buckets
    take the memory of all gradients, in the forward pass too. DDP also rebuilds its buckets after
    its first backward pass, in the order in which gradients arrived. Sums over three or more ranks
    round by a value's place in its bucket, so the first step of a resumed run would differ from
    that of an undisturbed run if it still had the first buckets.
    """
    config, ranks = dry_run.config, context.ranks
    among_ranks = ranks.world_size > 1
    needed = among_ranks or (
        not config.compile.compiles and (ranks.device.type == "cuda" or len(shapes) > 1)
    )
    if shapes and needed:
        with attention_backend(config.attention, ranks.device):
            dry_run.run(shapes, wrapped)


@contextmanager
def _all_optimizer_state(optimizer: torch.optim.Optimizer) -> Iterator[None]:
    """Allocate the state that the first step will need; state that already exists is not touched.

    It is made by a step at a learning rate of 0, which changes no weight, with gradients of 1: an
    optimizer could divide by a gradient of 0.
    """
    parameters: list[nn.Parameter] = [
        p for group in optimizer.param_groups for p in group["params"]
    ]
    lacking = {p for p in parameters if p.requires_grad and not optimizer.state.get(p)}
    gradients = [p.grad for p in parameters]
    if is_replaced(optimizer) and optimizer.state:
        lacking = set()  # A step might change what has been restored.
    if lacking:
        undo = _undo_of_replaced(optimizer, parameters)
        for parameter in parameters:
            parameter.grad = torch.ones_like(parameter) if parameter in lacking else None
        set_lr_factor(optimizer, 0.0)
        optimizer.step()
        set_lr_factor(optimizer, 1.0)
        for parameter, gradient in zip(parameters, gradients, strict=True):
            parameter.grad = gradient
        undo()
    try:
        yield
    finally:
        for parameter in lacking:
            optimizer.state.pop(parameter, None)


def _undo_of_replaced(
    optimizer: torch.optim.Optimizer, parameters: list[nn.Parameter]
) -> Callable[[], None]:
    """Return what undoes a step of a project's optimizer, which may count in its groups, and change
    weights at a rate of 0.
    """
    if not is_replaced(optimizer):
        return lambda: None
    # In host memory: the device's may be full before a step.
    weights = [parameter.detach().to("cpu", copy=True) for parameter in parameters]
    groups = [
        copy.deepcopy({key: value for key, value in group.items() if key != "params"})
        for group in optimizer.param_groups
    ]

    @torch.no_grad()
    def undo() -> None:
        for parameter, weight in zip(parameters, weights, strict=True):
            parameter.copy_(weight)
        for group, before in zip(optimizer.param_groups, groups, strict=True):
            members = group["params"]
            group.clear()
            group.update(before, params=members)

    return undo


def _key(config: TrainConfig, precision: Precision, shapes: Sequence[BatchShape]) -> str:
    shaping = config.model_dump(
        mode="json",
        include={"model", "compile", "activation_checkpointing", "attention", "precision", "loss"},
    )
    shaping["masks_tokens"] = config.masks_tokens
    return compile_key(shaping, shapes, str(precision.operands), str(precision.device.type))


def _notify(context: RunContext) -> Notify:
    def notify(phase: str, message: str, done: float | None) -> None:
        context.log(f"{phase}: {message}")
        context.events.write(Notice(time=time.time(), phase=phase, message=message, done=done))

    return notify


def _warn_of_math(context: RunContext, dry_run: DryRun, shapes: Sequence[BatchShape]) -> None:
    config, precision = dry_run.config, dry_run.precision
    attention = config.attention
    by_blocks = attention.document_masking and attention.backend == "auto"
    if attention.chosen.holds_scores or by_blocks:  # It was asked for, or is not used.
        return
    model = config.model
    for micro_batch, length in shapes:
        message = math_fallback(
            AttentionCall(
                device=precision.device,
                dtype=precision.operands,
                batch=micro_batch,
                heads=model.num_attention_heads,
                kv_heads=model.num_key_value_heads,
                length=length,
                head_size=model.head_size,
                dense_mask=attention.document_masking,
            )
        )
        if message is not None:
            context.log(f"warning: {message}")
            context.events.write(
                Warning_(time=time.time(), code="math_attention", message=message, step=0)
            )
            return
