"""Gradients in 16 bits between ranks: DDP communication hooks that keep count.

PyTorch's own fp16 hook casts as it is: a 1B model's gradients (rms near 3e-6)
then fall among fp16's subnormals and lose most digits. Here fp16 is scaled by a
fixed power on the way, and values that overflow are counted.
"""

from __future__ import annotations

from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel

from lehr_trainer.configs.parallel import ParallelConfig

_HOOK = "lehr_compression"
"""The wrapped model's attribute that keeps its hook."""


def compress_gradients(
    model: DistributedDataParallel, config: ParallelConfig, *, already_scaled: bool = False
) -> CompressedMean | None:
    """Register the config's hook; None if gradients travel as they are.

    Args:
        model: the wrapped model, before its first backward.
        config: compression and its scale.
        already_scaled: under fp16's loss scale gradients need no second one.
    """
    if config.compression == "none":
        return None
    dtype = torch.float16 if config.compression == "fp16" else torch.bfloat16
    scale = config.compression_scale if dtype == torch.float16 and not already_scaled else 1.0
    device = next(model.parameters()).device
    hook = CompressedMean(dtype, scale, device)
    # DDP compares annotations as objects, which a lambda has none of.
    model.register_comm_hook(None, lambda _state, bucket: hook.reduce(bucket))
    setattr(model, _HOOK, hook)
    return hook


def overflow_count(wrapped: nn.Module) -> Tensor | None:
    """Count the gradient values lost to compression so far, on the device.

    None if gradients are not compressed.
    """
    hook: CompressedMean | None = getattr(wrapped, _HOOK, None)
    return None if hook is None else hook.overflows


class CompressedMean:
    """Averages over ranks, and sends gradients in ``dtype``."""

    def __init__(self, dtype: torch.dtype, scale: float, device: torch.device) -> None:
        self.dtype = dtype
        self.scale = scale
        self.overflows = torch.zeros((), dtype=torch.int64, device=device)
        """Number of gradient values that arrived as infinity or NaN so far; on the device."""

    def reduce(self, bucket: Any) -> torch.futures.Future[Tensor]:
        """Reduce a ``GradBucket``; DDP calls this during backward, as soon as it is full."""
        gradients: Tensor = bucket.buffer()
        # Divided before the sum, so that the sum over ranks cannot overflow.
        small = (gradients * (self.scale / dist.get_world_size())).to(self.dtype)
        sent = dist.all_reduce(small, async_op=True)
        assert sent is not None

        def widen(future: torch.futures.Future[list[Tensor]]) -> Tensor:
            mean = future.value()[0]
            self.overflows += (~torch.isfinite(mean)).sum()
            return gradients.copy_(mean).div_(self.scale)

        return sent.get_future().then(widen)  # type: ignore[no-any-return]
