"""AdamW and its parameter groups."""

from __future__ import annotations

import torch
from torch import nn

from lehr_trainer.configs.optimizer import AdamWConfig
from lehr_trainer.optim.groups import by_role, mup_width


def build_adamw(model: nn.Module, config: AdamWConfig) -> torch.optim.Optimizer:
    """Build AdamW over two groups, ``decayed`` and ``kept``; each parameter is in exactly one.

    Under muP the blocks' matrices are a group of their own, ``matrix``, with the rate that their
    width needs. Their decay is divided by the same factor: what a step takes from a weight is
    rate x decay, which then stays the same at every width, as in the paper's own code.
    """
    width = mup_width(model)
    if width is None:
        decayed, kept = split_parameters(model)
        groups = [
            {"name": name, "params": members, "weight_decay": decay, "peak_lr": config.lr}
            for name, members, decay in (
                ("decayed", decayed, config.weight_decay),
                ("kept", kept, 0.0),
            )
        ]
    else:
        lists, rate = by_role(model), config.mup_rate(width)
        groups = [
            {
                "name": name,
                "params": members,
                "weight_decay": decay,
                "peak_lr": config.lr * factor,
                "lr": config.lr * factor,
            }
            for name, members, decay, factor in (
                ("matrix", lists["matrix"], config.weight_decay / rate, rate),
                ("decayed", lists["head"], config.weight_decay, 1.0),
                ("kept", lists["embedding"] + lists["vector"], 0.0, 1.0),
            )
        ]
    return torch.optim.AdamW(
        [group for group in groups if group["params"]],
        lr=config.lr,
        betas=config.betas,
        eps=config.eps,
        fused=config.fused,
    )


def split_parameters(model: nn.Module) -> tuple[list[nn.Parameter], list[nn.Parameter]]:
    """Split parameters: matrices of linears are decayed; norms, biases and embeddings are kept."""
    embeddings = {
        id(module.weight) for module in model.modules() if isinstance(module, nn.Embedding)
    }
    decayed: list[nn.Parameter] = []
    kept: list[nn.Parameter] = []
    for parameter in model.parameters():
        is_matrix = parameter.ndim >= 2 and id(parameter) not in embeddings
        (decayed if is_matrix else kept).append(parameter)
    return decayed, kept
