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

from lehr_trainer.configs.execution import ParallelConfig

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
    parameters = list(model.parameters())
    # No bucket is empty, so there are never more buckets than parameters.
    hook = CompressedMean(dtype, scale, parameters[0].device, buckets=len(parameters))
    # DDP compares annotations as objects, which a lambda has none of.
    model.register_comm_hook(None, lambda _state, bucket: hook.reduce(bucket))
    setattr(model, _HOOK, hook)
    return hook


def overflow_counts(wrapped: nn.Module) -> Tensor | None:
    """Return the gradient values lost to compression so far, by bucket, on the device.

    None if gradients are not compressed.
    """
    hook: CompressedMean | None = getattr(wrapped, _HOOK, None)
    return None if hook is None else hook.overflows


class CompressedMean:
    """Averages over ranks, and sends gradients in ``dtype``."""

    def __init__(
        self, dtype: torch.dtype, scale: float, device: torch.device, *, buckets: int
    ) -> None:
        self.dtype = dtype
        self.scale = scale
        self.overflows = torch.zeros(buckets, dtype=torch.int64, device=device)
        """Number of gradient values that arrived as infinity or NaN so far; on the device.

        Each bucket has its own count: the callbacks of two buckets run on different streams, and
        additions to one value could overwrite each other. DDP lets the stream of the training wait
        for all callbacks before backward ends, so the sum of the counts is right from then on.
        """

    def reduce(self, bucket: Any) -> torch.futures.Future[Tensor]:
        """Reduce a ``GradBucket``; DDP calls this during backward, as soon as it is full."""
        gradients: Tensor = bucket.buffer()
        index: int = bucket.index()
        # Divided before the sum, so that the sum over ranks cannot overflow.
        small = (gradients * (self.scale / dist.get_world_size())).to(self.dtype)
        sent = dist.all_reduce(small, async_op=True)
        assert sent is not None

        def widen(future: torch.futures.Future[list[Tensor]]) -> Tensor:
            mean = future.value()[0]
            self.overflows[index].add_((~torch.isfinite(mean)).sum())
            gradients.copy_(mean)
            return gradients if self.scale == 1.0 else gradients.div_(self.scale)

        return sent.get_future().then(widen)  # type: ignore[no-any-return]
