"""How a model is executed: compilation, precision, attention, recomputation, ranks, its updates,
and a mean of its weights beside it.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, Any, ClassVar, Literal, Self

from pydantic import Field, field_validator, model_validator

from lehr_trainer.configs.base import Config, NonNegativeInt, OrNone, PositiveInt
from lehr_trainer.configs.sizes import FP32

if TYPE_CHECKING:
    from lehr_trainer.configs.train import TrainConfig

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

    # Left out of a config without it, which trainers of older capsules read as well.
    shard: Annotated[
        Literal["none", "optimizer", "node", "all"], Field(exclude_if=lambda shard: shard == "none")
    ] = "none"
    """What the ranks divide among them (FSDP2). none: nothing, DDP. optimizer: gradients and the
    optimizer's state; weights are whole during a step. all: weights, too, gathered block by block.
    node: as all, within each node; nodes hold the same."""
    bucket_mb: OrNone[Annotated[float, Field(gt=0)]] = None
    """DDP's gradient bucket size in MB (1e6 bytes): smaller ones leave earlier, more of them.
    null: 25 on one node, 100 across nodes, where each costs a round trip."""
    compression: Literal["none", "fp16", "bf16"] = "none"
    """Send gradients in 16 bits: half the traffic. bf16 keeps the range and loses digits; fp16
    keeps digits and needs ``compression_scale``."""
    compression_scale: Annotated[float, Field(gt=0)] = 1024.0
    """fp16: gradients are multiplied by it on the way. A 1B model's are about 3e-6 at norm 0.1,
    below fp16's normal numbers (6e-5); with precision.compute fp16 they are scaled already."""
    static_graph: bool = False
    """Tells DDP that every step uses the same parameters in the same order. Not with gradient
    accumulation, which it does not know."""
    hang_limit_s: Annotated[float | None, Field(gt=0, exclude_if=lambda s: s == 300)] = 300.0
    """Seconds without a step after which the run records what each rank does, and ends: at least 10
    times the mean step, and 30 times this in evaluation, save, compilation. null: it waits."""

    @model_validator(mode="after")
    def _check_sharding(self) -> Self:
        if self.shard != "none" and (self.static_graph or self.compression == "fp16"):
            name = "static_graph" if self.static_graph else "compression: fp16"
            raise ValueError(
                f"parallel.{name} is of DDP and does not go with shard: {self.shard}; leave it out"
            )
        return self

    def check_fits(self, train: TrainConfig) -> None:
        """Raise ValueError if the training has a part that cannot be sharded."""
        if self.shard == "none":
            return
        own = train.parts is not None and train.parts.optimizer is not None
        te_delayed = train.precision.fp8.recipe == "te_delayed"
        whole, mode = train.compile.scope == "model", train.compile.mode
        graphs = mode in {"reduce-overhead", "max-autotune"}
        for field, is_set, reason in (
            ("parts.optimizer", own, "may need whole matrices; use adamw or muon"),
            ("compile.scope model", whole, "leaves no time to gather a block; use block"),
            (f"compile.mode {mode}", graphs, "needs weights that do not move; use default"),
            ("precision.fp8.recipe te_delayed", te_delayed, "is not known to work with it"),
        ):  # fmt: skip
            if is_set:
                raise ValueError(f"{field} {reason}, or set parallel.shard: none")
        if train.parts is None or train.parts.model is None:  # A project's is checked when built.
            model = train.model
            for name, length in (
                ("model.hidden_size", model.hidden_size),
                ("model.intermediate_size", model.mlp_size),
                ("all heads of the model", model.num_attention_heads * model.head_size),
            ):
                train.optimizer.check_rows(name, length)

    def check_accumulation(self, micro_steps: int) -> None:
        """Raise ValueError if ``static_graph`` is combined with accumulation."""
        if self.static_graph and micro_steps > 1:
            raise ValueError(
                "parallel.static_graph cannot be combined with gradient accumulation "
                f"({micro_steps} micro-batches a step): set it to false, or batch.micro_batch to a "
                "rank's share"
            )


class LossScaleConfig(Config):
    """Loss scaling for fp16: the loss is scaled up so that small gradients do not vanish
    (Micikevicius et al. 2017). A step whose gradients overflow is skipped, and the scale is halved.
    """

    initial: Annotated[float, Field(gt=0)] = 65_536.0
    """First value of the scale."""
    growth_interval: PositiveInt = 2000
    """Steps without overflow after which the scale doubles."""


class SkipStepConfig(Config):
    """Skips updates whose loss or gradient norm is far above that of the last steps (as in OLMo).

    Off by default: in a sweep it would hide that a learning rate is too high.
    """

    enabled: bool = False
    """Leave out updates whose loss or gradient norm is an outlier."""
    window: Annotated[int, Field(ge=2)] = 128
    """Number of past steps to compare with."""
    sigmas: Annotated[float, Field(gt=0)] = 6.0
    """A spike is more than this many standard deviations above their mean."""


@dataclass(frozen=True)
class FlashPackage:
    """A package whose kernel replaces PyTorch's flash kernel."""

    capabilities: tuple[int, ...]
    """Major numbers of the GPUs' compute capabilities."""
    module: str
    remedy: str
    """How to get it."""


@dataclass(frozen=True)
class Backend:
    """What is known of a backend. But for ``on_cpu``, it is about CUDA's kernel."""

    kernel: str
    """Member of torch's ``SDPBackend``; ``auto`` has none of its own."""
    on_cpu: bool = False
    """A CPU has it, too."""
    sixteen_bit_only: bool = False
    """It takes fp16 and bf16 operands only."""
    dense_mask: bool = False
    """It takes a mask of all pairs of tokens."""
    shares_heads: bool = True
    """With 16-bit operands it takes fewer key and value heads than query heads."""
    holds_scores: bool = False
    """It keeps all T x T scores."""
    package: FlashPackage | None = None


BACKENDS: dict[str, Backend] = {
    "auto": Backend("", on_cpu=True),
    "flash": Backend("FLASH_ATTENTION", on_cpu=True, sixteen_bit_only=True),
    "efficient": Backend("EFFICIENT_ATTENTION", dense_mask=True, shares_heads=False),
    "cudnn": Backend("CUDNN_ATTENTION", sixteen_bit_only=True),
    "math": Backend("MATH", on_cpu=True, dense_mask=True, holds_scores=True),
    "fa3": Backend(
        "FLASH_ATTENTION",
        sixteen_bit_only=True,
        package=FlashPackage(
            (9,), "flash_attn_interface", "build flash-attention's hopper/ folder"
        ),
    ),
    "fa4": Backend(
        "FLASH_ATTENTION",
        sixteen_bit_only=True,
        package=FlashPackage(
            (9, 10), "flash_attn.cute.interface", "pip install --pre flash-attn-4"
        ),
    ),
}
"""By name, as ``AttentionConfig.backend`` lists them."""


def sixteen_bit_only(backend: str) -> str:
    """Return the message for fp32 on such a backend."""
    return (
        f"attention.backend: {backend} takes bf16 and fp16 operands only on a CUDA GPU, and "
        "precision.compute is fp32; set attention.backend: auto, or precision.compute: bf16"
    )


class AttentionConfig(Config):
    """How attention is computed; the result is the same but for rounding."""

    shorthand: ClassVar[str] = "backend"

    backend: Literal["auto", "flash", "efficient", "cudnn", "math", "fa3", "fa4"] = "auto"
    """auto: PyTorch's own choice. flash, efficient, cudnn, math: that SDPA kernel and no other.
    fa3, fa4: FlashAttention 3 or 4, from their own packages, in place of PyTorch's flash kernel."""
    document_masking: bool = False
    """Let a token see only its own document of a packed sequence. On CUDA auto computes this by
    FlexAttention, which skips other documents; efficient and math read a mask of all pairs."""

    @property
    def chosen(self) -> Backend:
        return BACKENDS[self.backend]

    @field_validator("backend", mode="before")
    @classmethod
    def _fp8_cannot_train(cls, value: Any) -> Any:
        if isinstance(value, str) and "fp8" in value.lower():
            raise ValueError(
                f"{value!r} cannot train: FP8 attention has no backward pass (FlashAttention's "
                "takes fp16 and bf16 only). Use auto; FP8 is for the linear layers (precision.fp8)"
            )
        return value


class SampleConfig(Config):
    """A text that the model writes, for people to read."""

    every: NonNegativeInt = 500
    """Steps between samples; 0 writes none."""
    prompt: Annotated[str, Field(min_length=1)] = "The meaning of life is "
    """Text that each sample continues."""
    tokens: PositiveInt = 50
    """Tokens of a sample."""
    temperature: Annotated[float, Field(ge=0)] = 0.8
    """0 takes the likeliest token each time. A sample has its own random generator, so it changes
    nothing in the training."""


class DiagnosticsConfig(Config):
    log_every: PositiveInt = 1
    """Steps between metrics records."""
    stop_on_nan: bool = True
    """End the run at a loss that is not finite; the error names the last good checkpoint."""
    parts_every: NonNegativeInt = 50
    """Steps between norms, gradient norms and update ratios of the model's parts; 0 for none."""
    quality_every: NonNegativeInt = 100
    """Steps between top1_acc and raw_ce_fp32; 0 for none."""
    quality_tokens: PositiveInt = 2048
    """Tokens of the batch that top1_acc and raw_ce_fp32 use (whole sequences, at least one)."""
    sample: SampleConfig = SampleConfig()


class ProfileConfig(Config):
    """Records ``active`` steps after ``wait`` and ``warmup`` steps, once per launch."""

    tool: Literal["none", "torch", "nsys"] = "none"
    """torch: a Chrome trace and a summary in the attempt's ``profiles``. nsys: NVTX ranges and a
    capture range for Nsight Systems, which has to start the run: the command is printed."""
    wait: NonNegativeInt = 2
    """Steps that are skipped first: they compile."""
    warmup: NonNegativeInt = 3
    """Steps that are profiled and discarded."""
    active: PositiveInt = 3
    """Steps that are profiled and kept."""


class AverageConfig(Config):
    """A mean of the weights of past steps, kept in fp32 in the host memory of rank 0.

    It is evaluated beside the weights (``val/average/loss``), saved and exported; the training
    does not use it.
    """

    last: int | None = None
    """Mean of the last so many snapshots (latest weight averaging, arXiv:2306.03241), each of which
    takes 4 bytes of host memory for each parameter."""
    ema: Annotated[float, Field(gt=0, lt=1)] | None = None
    """Exponential moving average: its decay for one step, whatever ``every`` is. Weights are
    divided by their sum, so early averages do not lean towards the first snapshot."""
    every: PositiveInt
    """Steps between two snapshots."""

    @model_validator(mode="after")
    def _is_a_mean(self) -> Self:
        if (self.last is None) == (self.ema is None):
            named = "both are given" if self.ema is not None else "neither is given"
            raise ValueError(f"average is of the last snapshots or an ema, and {named}; give one")
        if self.last is not None and self.last < 2:
            raise ValueError(
                f"average.last is {self.last}: the mean of one snapshot is that snapshot, which a "
                "checkpoint holds anyway; give 2 or more"
            )
        return self

    @property
    def held(self) -> int:
        """Number of snapshots or averages that a checkpoint holds."""
        return self.last or 1

    def check_fits(self, steps: int) -> None:
        """Raise ValueError if a run of so many steps has fewer than two snapshots."""
        if steps < 2 * self.every:
            raise ValueError(
                f"average.every is {self.every}, but the run has {steps} steps, so fewer than two "
                "snapshots, and the mean of one is that snapshot; lower it, or leave average out"
            )

    def checkpoint_bytes(self, parameters: int) -> int:
        return FP32 * parameters * self.held

    def host_bytes(self, parameters: int, *, on_cpu: bool) -> int:
        """Count the host memory of rank 0; on CUDA an ema receives its snapshots in a buffer."""
        buffer = self.ema is not None and not on_cpu
        return self.checkpoint_bytes(parameters) + FP32 * parameters * buffer
