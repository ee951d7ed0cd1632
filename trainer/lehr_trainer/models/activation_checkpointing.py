"""Activation checkpointing by part. ActivationCheckpointingConfig lists what each part costs.

A checkpointed module keeps only its inputs and runs its forward again in backward. Names of modules
and parameters do not change.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch import nn
from torch.utils.checkpoint import checkpoint

from lehr_trainer.configs.execution import ActivationCheckpointingConfig
from lehr_trainer.models.module_map import blocks, module_map, token_embedding


def recompute_activations(
    model: nn.Module, config: ActivationCheckpointingConfig
) -> list[nn.Module]:
    """Make the config's parts recompute in backward; returns them. Call it before compiling."""
    chosen = list(_parts(model, config))
    for module in chosen:
        # An attribute of the instance: wrapping in a module would rename every parameter.
        module.forward = _recomputed(module.forward)
    return chosen


def _parts(model: nn.Module, config: ActivationCheckpointingConfig) -> Iterator[nn.Module]:
    where = module_map(model)
    if config.policy == "embedding":
        yield token_embedding(model)
    if config.policy in {"none", "embedding"}:
        return
    for index, block in enumerate(blocks(model)):
        if index % config.every:
            continue
        match config.policy:
            case "block":
                yield block
            case "attention":
                yield block.get_submodule(where.attention)
            case "swiglu":
                yield block.get_submodule(where.mlp)
            case "norms":
                yield from (block.get_submodule(name) for name in where.norms)


def _recomputed(forward: Callable[..., Any]) -> Callable[..., Any]:
    def run(*inputs: Any) -> Any:
        if not torch.is_grad_enabled():
            return forward(*inputs)
        # Nothing here uses random numbers, so their state need not be kept.
        return checkpoint(forward, *inputs, use_reentrant=False, preserve_rng_state=False)

    return run
