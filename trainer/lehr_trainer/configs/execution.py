"""How a model is executed: torch.compile, FP8, activation checkpointing, data parallelism."""

from __future__ import annotations

from typing import Annotated, ClassVar, Literal, Self

from pydantic import Field, model_validator

from lehr_trainer.configs.base import Config, PositiveInt

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


class ActivationCheckpointingConfig(Config):
    """Activation checkpointing: less memory, more time, the same results (Chen et al. 2016).
    Measured on one H100 (docs/reference-runs.md) at [16, 2048], against none: attention +6 % time
    and -11 % memory, swiglu +6 % and -40 %, block +17 % and -56 %; embedding and norms next to
    nothing.
    """

    shorthand: ClassVar[str] = "policy"
    switch: ClassVar[tuple[str, str] | None] = ("none", "block")

    policy: Literal["none", "embedding", "norms", "attention", "swiglu", "block"] = "none"
    """The part of the model whose activations are not kept; swiglu is GPT-2's MLP too."""
    every: PositiveInt = 1
    """Only in every n-th layer: 2 halves both the saving and the cost."""

    @property
    def time_factor(self) -> float:
        """Time of a step over that of one without recomputation, as measured (see above)."""
        return 1 + _COST.get(self.policy, 0.0) / self.every


_COST = {"attention": 0.06, "swiglu": 0.06, "block": 0.17}
"""Share of a step's time that a policy adds in every layer."""


class Fp8Config(Config):
    """The blocks' linears multiply in FP8; weights, head, embedding and norms stay as they are.

    Evaluation never uses it.
    """

    shorthand: ClassVar[str] = "recipe"

    recipe: Literal["none", "tensorwise", "rowwise", "te_delayed"] = "none"
    """tensorwise, rowwise: torchao, one scale a tensor (fastest) or a row (finer).
    te_delayed: Transformer Engine, scales from past maxima; never compiled."""
    emulate: bool = False
    """Compute torchao's recipes without FP8 hardware, slowly: for tests on a CPU."""

    @property
    def torchao_recipe(self) -> str:
        """The recipe if torchao computes it, else an empty string."""
        return self.recipe if self.recipe in {"tensorwise", "rowwise"} else ""


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
