"""AdamW; roles of parameters, and the one way to set learning rates.

Every optimizer built here keeps ``name`` and ``peak_lr`` in each group; the schedule's factor then
means the same to all of them.
"""

from __future__ import annotations

from typing import Any, Literal

import torch
from torch import Tensor, nn

from lehr_trainer.configs.optimizer import AdamWConfig, EightBitAdamWConfig
from lehr_trainer.configs.shapes import Shape, width_ratio

ParameterRole = Literal["embedding", "head", "matrix", "vector"]


def roles(model: nn.Module) -> dict[str, ParameterRole]:
    """Return the role of each parameter by name; a tied head is the embedding.

    embedding: tables that are looked up. head: an untied head. vector: norms and
    biases. matrix: the linears of the blocks.
    """
    tables = {
        id(parameter)
        for module in model.modules()
        if isinstance(module, nn.Embedding)
        for name, parameter in module.named_parameters(recurse=False)
        if name == "weight"
    }
    head = id(getattr(model, "head_weight", None))
    found: dict[str, ParameterRole] = {}
    for name, parameter in model.named_parameters():
        if id(parameter) in tables:
            found[name] = "embedding"
        elif id(parameter) == head:
            found[name] = "head"
        else:
            found[name] = "matrix" if parameter.ndim >= 2 else "vector"
    return found


def by_role(model: nn.Module) -> dict[ParameterRole, list[nn.Parameter]]:
    """Sort the trained parameters by role; each is in exactly one list."""
    lists: dict[ParameterRole, list[nn.Parameter]] = {
        "embedding": [],
        "head": [],
        "matrix": [],
        "vector": [],
    }
    named = dict(model.named_parameters())
    for name, role in roles(model).items():
        if named[name].requires_grad:
            lists[role].append(named[name])
    return lists


def mup_width(model: nn.Module) -> float | None:
    """Return width / base width of a model under muP; None in the standard parametrization."""
    config: Shape | None = getattr(model, "config", None)
    if config is None or config.parametrization == "standard":
        return None
    return width_ratio(config)


def set_lr_factor(optimizer: torch.optim.Optimizer, factor: float) -> None:
    """Set each group's rate to ``factor`` of its peak; a tensor rate is filled, not replaced."""
    for group in optimizer.param_groups:
        rate = group["peak_lr"] * factor
        if isinstance(group["lr"], Tensor):
            group["lr"].fill_(rate)
        else:
            group["lr"] = rate


def build_adamw(model: nn.Module, config: AdamWConfig) -> torch.optim.Optimizer:
    """Build AdamW over two groups, ``decayed`` and ``kept``; each parameter is in exactly one.

    Under muP the blocks' matrices are a group of their own, ``matrix``, with the rate that their
    width needs. Their decay is divided by the same factor: what a step takes from a weight is
    rate x decay, which then stays the same at every width, as in the paper's own code.
    """
    width, lists = mup_width(model), by_role(model)
    if width is None:
        groups = decayed_and_kept(lists, config)
    else:
        rate = config.mup_rate(width)
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
            if members
        ]
    return torch.optim.AdamW(
        groups,
        lr=config.lr,
        betas=config.betas,
        eps=config.eps,
        fused=config.fused,
    )


def decayed_and_kept(
    lists: dict[ParameterRole, list[nn.Parameter]], config: AdamWConfig | EightBitAdamWConfig
) -> list[dict[str, Any]]:
    """Make two groups: matrices of linears are decayed; norms, biases and embeddings are kept."""
    return [
        {"name": name, "params": members, "weight_decay": decay, "peak_lr": config.lr}
        for name, members, decay in (
            ("decayed", lists["matrix"] + lists["head"], config.weight_decay),
            ("kept", lists["embedding"] + lists["vector"], 0.0),
        )
        if members
    ]
