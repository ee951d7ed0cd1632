"""Which cross entropy a run trains with."""

from __future__ import annotations

from typing import Literal

from lehr_trainer.configs.base import Config, PositiveInt

LossName = Literal[
    "chunked",
    "standard",
    "torch_chunked",
    "liger",
    "cce",
    "cce_fp32",
    "cce_kahan",
    "in_autocast",
    "bf16_softmax",
]


class LossConfig(Config):
    """All compute the same mean cross entropy; they differ in memory, speed and rounding."""

    name: LossName = "chunked"
    """chunked: our own, never all logits at once (default). standard: all logits, in fp32.
    torch_chunked: PyTorch's linear_cross_entropy, fp32 operands. liger: Liger's fused kernel, fp32
    sums. cce, cce_fp32, cce_kahan: Apple's Cut Cross Entropy as it comes, with fp32 sums, and with
    Kahan sums and every gradient of the head kept. in_autocast and
    bf16_softmax reproduce known-bad numerics for comparison; do not train with them."""
    chunk_mb: PositiveInt = 1024
    """Bound on the fp32 logits that exist at once (MiB); for chunked."""
