"""Small parts that the model families share."""

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
    weight = torch.cat([operand(linear.weight) for linear in linears])
    biases = [operand(linear.bias) for linear in linears if linear.bias is not None]
    out = F.linear(x, weight, torch.cat(biases) if biases else None)
    return torch.split(out, [linear.out_features for linear in linears], dim=-1)


def operand(x: Tensor) -> Tensor:
    """Round to the dtype of autocast, if it is on: once, for all the products that ``x`` enters."""
    kind = x.device.type
    return x.to(torch.get_autocast_dtype(kind)) if torch.is_autocast_enabled(kind) else x


def begin_stream(x: Tensor, dtype: torch.dtype | None) -> Tensor:
    """Round the embeddings to the stream's dtype, if one is set and autocast is on.

    Without autocast, as in the fp32 loss of ``quality``, all is computed in fp32.
    """
    if dtype is None or not torch.is_autocast_enabled(x.device.type):
        return x
    return x.to(dtype)
