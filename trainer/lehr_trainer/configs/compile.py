"""torch.compile: what is compiled, and with which mode."""

from __future__ import annotations

from typing import ClassVar, Literal, Self

from pydantic import model_validator

from lehr_trainer.configs.base import Config

Scope = Literal["auto", "none", "block", "model"]


class CompileConfig(Config):
    """Each block by itself makes one graph that all blocks share, and lets DDP send gradients
    while backward goes on.
    """

    shorthand: ClassVar[str] = "scope"
    switch: ClassVar[tuple[str, str] | None] = ("none", "block")

    scope: Scope = "auto"
    """What is compiled: nothing, each block by itself, or the whole model. auto: each block on
    CUDA, or if a mode or fullgraph is given; nothing on a CPU."""
    mode: Literal["default", "reduce-overhead", "max-autotune", "max-autotune-no-cudagraphs"] = (
        "default"
    )
    """reduce-overhead and max-autotune replay CUDA graphs: fewer launches, more memory."""
    fullgraph: bool = False
    """Treat a break in the graph as an error, not as a slower run."""
    joint_products: bool = False
    """Compute query, key and value as one matrix product, and gate and up as another: fewer, larger
    products for a GPU. Weights, checkpoints and exports stay the same. For a Llama without FP8."""

    @model_validator(mode="after")
    def _has_an_effect(self) -> Self:
        if self.scope == "none" and self._asks_for_more:
            given = "compile.fullgraph" if self.mode == "default" else f"compile.mode {self.mode}"
            raise ValueError(
                f"{given} has no effect, since compile.scope is none; leave compile.scope out, or "
                "set it to block"
            )
        return self

    @property
    def _asks_for_more(self) -> bool:
        return self.mode != "default" or self.fullgraph

    def on(self, device: str) -> CompileConfig:
        """Return the settings on a device (``cuda`` or ``cpu``), with a scope other than auto."""
        if self.scope != "auto":
            return self
        scope: Scope = "block" if device == "cuda" or self._asks_for_more else "none"
        return self.model_copy(update={"scope": scope})

    @property
    def compiles(self) -> bool:
        """Whether anything is compiled.

        Raises:
            ValueError: the scope is auto: it depends on the device (``on``).
        """
        if self.scope == "auto":
            raise ValueError("compile.scope is auto; resolve it with on()")
        return self.scope != "none"

    @property
    def cuda_graphs(self) -> bool:
        return self.compiles and self.mode in {"reduce-overhead", "max-autotune"}
