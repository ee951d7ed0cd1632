"""Data parallel over torchrun's ranks: how gradients travel."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field

from lehr_trainer.configs.base import Config


class ParallelConfig(Config):
    """Data parallel over torchrun's ranks."""

    bucket_mb: Annotated[float, Field(gt=0)] = 25.0
    """DDP's gradient bucket size in MB (1e6 bytes): smaller ones leave earlier, more of them."""
    compression: Literal["none", "fp16", "bf16"] = "none"
    """Send gradients in 16 bits: half the traffic. bf16 keeps the range and loses digits; fp16
    keeps digits and needs ``compression_scale``."""
    compression_scale: Annotated[float, Field(gt=0)] = 1024.0
    """fp16: gradients are multiplied by it on the way. A 1B model's are about 3e-6 at norm 0.1,
    below fp16's normal numbers (6e-5); with precision.compute fp16 they are scaled already."""
    static_graph: bool = False
    """Tells DDP that every step uses the same parameters in the same order. Not with gradient
    accumulation, which it does not know."""

    def check_accumulation(self, micro_steps: int) -> None:
        """Raise ValueError if ``static_graph`` is combined with accumulation."""
        if self.static_graph and micro_steps > 1:
            raise ValueError(
                "parallel.static_graph cannot be combined with gradient accumulation "
                f"({micro_steps} micro-batches a step): set it to false, or batch.micro_batch to a "
                "rank's share"
            )
