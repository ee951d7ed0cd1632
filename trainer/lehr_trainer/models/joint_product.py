"""Linears that share their input, computed as one matrix product.

A GPU runs one large product better than several small ones: with grouped queries, key and value
have a quarter of the query's columns or fewer. The weights stay separate parameters. So
initialisation, Muon, statistics by layer, checkpoints and exports are the same with and without,
and a run may change the setting when it resumes. The price is a joined 16-bit copy of the weights;
compiled code writes it in place of the separate copies that autocast needs anyway.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn import functional as F


def join_products(model: nn.Module) -> int:
    """Have the modules of ``model`` that can compute their products as one; count them."""
    able = [module for module in model.modules() if hasattr(module, "joint")]
    for module in able:
        setattr(module, "joint", True)  # noqa: B010 - known to be a module's setting
    return len(able)


def products(x: Tensor, linears: tuple[nn.Linear, ...], *, joint: bool) -> tuple[Tensor, ...]:
    """Apply each linear to ``x`` [..., in], as one product if ``joint``."""
    if not joint:
        return tuple(linear(x) for linear in linears)
    kind = x.device.type
    dtype = torch.get_autocast_dtype(kind) if torch.is_autocast_enabled(kind) else x.dtype
    weight = torch.cat([linear.weight.to(dtype) for linear in linears])
    biases = [linear.bias.to(dtype) for linear in linears if linear.bias is not None]
    out = F.linear(x, weight, torch.cat(biases) if biases else None)
    return torch.split(out, [linear.out_features for linear in linears], dim=-1)
