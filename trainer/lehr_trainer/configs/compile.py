"""torch.compile: what is compiled, and with which mode."""

from __future__ import annotations

from typing import Literal

from lehr_trainer.configs.base import Config


class CompileConfig(Config):
    """Each block by itself makes one graph that all blocks share, and lets DDP send gradients
    while backward goes on.
    """

    scope: Literal["none", "block", "model"] = "none"
    """What is compiled: nothing, each block by itself, or the whole model."""
    mode: Literal["default", "reduce-overhead", "max-autotune", "max-autotune-no-cudagraphs"] = (
        "default"
    )
    """reduce-overhead and max-autotune replay CUDA graphs: fewer launches, more memory."""
    fullgraph: bool = False
    """Treat a break in the graph as an error, not as a slower run."""

    @property
    def cuda_graphs(self) -> bool:
        return self.scope != "none" and self.mode in {"reduce-overhead", "max-autotune"}
