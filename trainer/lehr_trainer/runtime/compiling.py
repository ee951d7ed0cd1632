"""torch.compile by block: one graph, no renamed parameter, safe to accumulate over.

Order: build the model, checkpointing, FP8, then ``compile_model``, then a mock
batch under ``compile_lock``, then DDP. Compiled before it is wrapped, a block
is one graph whose gradients leave while earlier blocks still compute theirs;
a whole model under DDP splits at every bucket (8 graphs measured).
"""

from __future__ import annotations

import torch
from torch import nn

from lehr_trainer.configs.execution import CompileConfig
from lehr_trainer.models.module_map import blocks


def compile_model(model: nn.Module, config: CompileConfig) -> None:
    """Compile in place; the first forward pass takes the time. State dicts do not change."""
    if not config.compiles:
        return
    parts = [model] if config.scope == "model" else list(blocks(model))
    mode = None if config.mode == "default" else config.mode
    for part in parts:
        # In place: wrapping would put "_orig_mod." into every parameter's name. Shapes are few
        # and long-lived (a sequence-length schedule has two), so each gets a graph of its own.
        part.compile(mode=mode, fullgraph=config.fullgraph, dynamic=False)


class Accumulation:
    """Decides where the gradients of a step's micro-batches add up.

    By default they are dropped after the update. They are zeroed instead, and so keep their memory:

    - under CUDA graphs. A replay writes its results where the last replay did, and a gradient that
      autograd adopted from there would change with the next micro-batch. So gradients get memory
      of their own before the first backward pass.
    - under DDP with several micro-batches. DDP keeps gradients in its buckets; dropped ones would
      be made again outside of them, and held twice until the last micro-batch is reduced.
    """

    def __init__(
        self, model: nn.Module, config: CompileConfig, *, in_buckets: bool = False
    ) -> None:
        """Prepare the model's gradients.

        Args:
            model: not wrapped yet.
            config: resolved for the device.
            in_buckets: DDP will hold the gradients of several micro-batches in its buckets.
        """
        self._replays = config.cuda_graphs
        self._keeps = self._replays or in_buckets
        self._model = model
        self._own_gradients()

    def _own_gradients(self) -> None:
        if self._replays:
            for parameter in self._model.parameters():
                if parameter.requires_grad and parameter.grad is None:
                    parameter.grad = torch.zeros_like(parameter)

    def begin_micro_step(self) -> None:
        """Mark the start of a forward pass: outputs of the last one are no longer needed."""
        if self._replays:
            torch.compiler.cudagraph_mark_step_begin()  # type: ignore[no-untyped-call]

    def clear(self, optimizer: torch.optim.Optimizer) -> None:
        """Clear gradients after the update, in place of ``optimizer.zero_grad``."""
        optimizer.zero_grad(set_to_none=not self._keeps)
