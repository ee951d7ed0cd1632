"""The losses: which there are, and the memory that they take."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Annotated, ClassVar, Literal, Self

from pydantic import Field, model_validator

from lehr_trainer.configs.base import Config, PositiveInt
from lehr_trainer.configs.sizes import BF16, FP32, HeadSize

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

Pointwise = Literal["auto", "compiled", "eager"]


class LossConfig(Config):
    """All compute the same cross entropy; they differ in memory, speed and rounding."""

    shorthand: ClassVar[str] = "name"

    name: LossName = "chunked"
    """chunked: our own, never all logits at once (default). standard: all logits, in fp32.
    torch_chunked: PyTorch's linear_cross_entropy, fp32 operands. liger: Liger's fused kernel, fp32
    sums. cce, cce_fp32, cce_kahan: Apple's Cut Cross Entropy as it comes, with fp32 sums, and with
    Kahan sums and every gradient of the head kept. in_autocast and
    bf16_softmax reproduce known-bad numerics for comparison; do not train with them."""
    chunk_mb: PositiveInt = 1024
    """Bound on the fp32 logits that exist at once (MiB); for chunked."""

    pointwise: Pointwise = "auto"
    """How chunked computes what lies between its products. compiled: by kernels that read a chunk's
    logits twice. eager: operation by operation, which moves about three times as many bytes. auto:
    compiled where the run compiles on CUDA (compile.scope), eager elsewhere."""
    z_loss: Annotated[float, Field(ge=0.0, le=0.01, exclude_if=lambda z: z == 0.0)] = 0.0
    """Coefficient of the z-loss of PaLM, for chunked and standard: so many times the square of the
    logarithm of the softmax's denominator is added to each token's loss, which keeps logits small.
    1e-4 in PaLM, 1e-5 in OLMo 2; 0 is none. It is logged as train/z_loss, and is no part of
    train/loss or val/loss."""

    @model_validator(mode="after")
    def _offers_z_loss(self) -> Self:
        if self.z_loss and not LOSSES[self.name].has_logits:
            able = " or ".join(name for name, traits in LOSSES.items() if traits.has_logits)
            raise ValueError(f"z_loss {self.z_loss:g} is not offered by {self.name}; use {able}")
        return self

    def on(self, device: str, *, compiles: bool) -> LossConfig:
        """Return the settings on ``cuda`` or ``cpu``, for a run that ``compiles`` or not."""
        if self.pointwise != "auto":
            return self
        compiled = device == "cuda" and compiles
        return self.model_copy(update={"pointwise": "compiled" if compiled else "eager"})

    def forward_bytes(self, head: HeadSize) -> int:
        """Count the most bytes that the head and its cross entropy hold in the forward pass."""
        return LOSSES[self.name].forward_bytes(self, head)

    def backward_bytes(self, head: HeadSize) -> int:
        """Count the most bytes that they hold until the last layer gets its gradient."""
        return LOSSES[self.name].backward_bytes(self, head)

    def no_grad_bytes(self, head: HeadSize) -> int:
        """Count the most bytes of ``chunked`` in an evaluation: logits and their log-softmax."""
        rows = chunk_rows(head.tokens, head.vocabulary, self.chunk_mb * 2**20)
        logits = FP32 * rows * head.vocabulary
        return max(2 * logits, logits + head.widened_weight_bytes) + head.copied_weight_bytes

    @property
    def runs_on_any_cpu(self) -> bool:
        return LOSSES[self.name].runs_on_any_cpu

    def check_caps(self, cap: float) -> None:
        """Raise ValueError if the loss cannot bound its logits by a model's ``cap``."""
        if not LOSSES[self.name].has_logits:
            able = " or ".join(name for name, traits in LOSSES.items() if traits.has_logits)
            raise ValueError(
                f"model.logit_softcap {cap:g} is not offered by loss.name {self.name}; use {able}"
            )

    def check_weighs(self, mask: str) -> None:
        """Raise ValueError if the loss cannot leave out tokens as ``mask``, a field, has it."""
        if not LOSSES[self.name].weighs:
            able = ", ".join(name for name, traits in LOSSES.items() if traits.weighs)
            raise ValueError(
                f"loss.name {self.name} cannot leave out tokens, which {mask} needs; the losses "
                f"that can: {able}"
            )


_Bytes = Callable[[LossConfig, HeadSize], int]


@dataclass(frozen=True)
class LossTraits:
    """What the planner and the platform must know of a loss, besides its settings."""

    forward_bytes: _Bytes
    backward_bytes: _Bytes
    weighs: bool = True
    """It takes a weight for each token."""
    has_logits: bool = False
    """It has fp32 logits at hand: it can add a z-loss and bound them."""
    runs_on_any_cpu: bool = False
    """It needs neither a GPU nor a further package."""


def chunk_rows(tokens: int, vocabulary: int, chunk_bytes: int) -> int:
    """Return the rows of a chunk: equal chunks, as few as the bound on their logits allows."""
    most = max(1, chunk_bytes // (FP32 * vocabulary))
    return -(-tokens // -(-tokens // most))


def _chunked_bytes(config: LossConfig, head: HeadSize) -> int:
    rows = chunk_rows(head.tokens, head.vocabulary, config.chunk_mb * 2**20)
    logits = rows * head.vocabulary
    # Eager: logits and their log-softmax in fp32, and the gradient rounded to 16 bits, if it is.
    # Compiled: logits and gradient.
    rounded = BF16 if head.half else 0
    compiled = config.pointwise == "compiled"
    each = FP32 + (rounded or FP32) if compiled else 2 * FP32 + rounded
    # The products that a CPU widens: with the logits as result, with their gradient as operand.
    # Of the latter the result is the hidden states' gradient, beside their rounded copy.
    narrow = FP32 + (BF16 if head.half and head.width == FP32 else 0)
    widened = (rounded + FP32) * logits + head.widened_weight_bytes + narrow * rows * head.hidden
    most = max(each * logits, widened if head.on_cpu else 0)
    return most + head.gradient_bytes + head.copied_weight_bytes


def _standard_forward_bytes(_config: LossConfig, head: HeadSize) -> int:
    """Count the logits and their log-softmax in fp32; on a CPU also the product's operands."""
    most = max(
        (2 + head.capped) * FP32 * head.logits, FP32 * head.logits + head.widened_weight_bytes
    )
    return most + head.copied_weight_bytes


def _standard_backward_bytes(config: LossConfig, head: HeadSize) -> int:
    """Count log-softmax, its gradient and the logits' gradient, all in fp32; z-loss has its own."""
    most = (3 + bool(config.z_loss) + head.capped) * FP32 * head.logits
    if head.half and head.on_cpu:
        # The logits' gradient as it came, rounded, and widened again for the product.
        most = max(most, (2 * FP32 + BF16) * head.logits + head.widened_weight_bytes)
    return most + head.copied_weight_bytes


def _row_chunks_bytes(_config: LossConfig, head: HeadSize) -> int:
    # Rows are cut so that a chunk's logits weigh about as much as the hidden states.
    chunk = 2 * FP32 * head.tokens * head.hidden
    return chunk + head.gradient_bytes + head.operand_bytes


def _torch_chunked_bytes(_config: LossConfig, head: HeadSize) -> int:
    """Count as for other chunks of rows, with all in fp32: hidden states, gradients, weights."""
    states = head.tokens * head.hidden
    widened = FP32 * states if head.width < FP32 else 0
    # The chunk exists inside of one operation, where a trace sees nothing.
    chunk = 2 * FP32 * states
    return chunk + FP32 * (head.weights + states) + widened


def _in_autocast_forward_bytes(_config: LossConfig, head: HeadSize) -> int:
    """Count bf16 logits and their log-softmax in fp32; a CPU widens the logits before it."""
    if not head.half:
        return 2 * FP32 * head.logits
    widened = FP32 if head.on_cpu else 0
    return (BF16 + widened + FP32) * head.logits + head.copied_weight_bytes


def _in_autocast_backward_bytes(_config: LossConfig, head: HeadSize) -> int:
    """Count log-softmax, its gradient and the logits' gradient, which CUDA rounds as it writes."""
    logits_gradient = BF16 if head.half and not head.on_cpu else FP32
    return (2 * FP32 + logits_gradient) * head.logits + head.copied_weight_bytes


def _multiples(gradients: int = 0, operands: int = 0, logits: int = 0) -> _Bytes:
    """Count both gradients, the rounded operands, and bf16 logits, each so many times."""
    return lambda _config, head: (
        gradients * head.gradient_bytes
        + operands * head.operand_bytes
        + logits * BF16 * head.logits
    )


_GRADIENTS, _CUT = _multiples(gradients=1), _multiples(gradients=1, operands=1)
_CUT_KAHAN = _multiples(gradients=2, operands=1)
"""Kahan sums keep a second tensor for what rounding lost."""
LOSSES: dict[LossName, LossTraits] = {
    "chunked": LossTraits(_chunked_bytes, _GRADIENTS, has_logits=True, runs_on_any_cpu=True),
    "standard": LossTraits(
        _standard_forward_bytes, _standard_backward_bytes, has_logits=True, runs_on_any_cpu=True
    ),
    "torch_chunked": LossTraits(_torch_chunked_bytes, _GRADIENTS, weighs=False),
    "liger": LossTraits(_row_chunks_bytes, _GRADIENTS, weighs=False),
    "cce": LossTraits(_CUT, _CUT),
    "cce_fp32": LossTraits(_CUT, _CUT),
    "cce_kahan": LossTraits(_CUT_KAHAN, _CUT_KAHAN),
    "in_autocast": LossTraits(
        _in_autocast_forward_bytes,
        _in_autocast_backward_bytes,
        runs_on_any_cpu=True,
    ),
    "bf16_softmax": LossTraits(
        _multiples(operands=1, logits=2),
        _multiples(operands=1, logits=3),
        weighs=False,
        runs_on_any_cpu=True,
    ),
}
