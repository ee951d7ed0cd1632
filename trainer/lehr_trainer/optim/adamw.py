"""AdamW and its parameter groups."""

from __future__ import annotations

import torch
from torch import nn

from lehr_trainer.configs.optimizer import AdamWConfig


def build_adamw(model: nn.Module, config: AdamWConfig) -> torch.optim.Optimizer:
    """Build AdamW over two groups, ``decayed`` and ``kept``; each parameter is in exactly one."""
    decayed, kept = split_parameters(model)
    groups = [
        {"name": name, "params": members, "weight_decay": decay, "peak_lr": config.lr}
        for name, members, decay in (
            ("decayed", decayed, config.weight_decay),
            ("kept", kept, 0.0),
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
