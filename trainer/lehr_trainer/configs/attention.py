"""Attention: which kernel runs, and whether packed documents see each other."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar, Literal

from pydantic import field_validator

from lehr_trainer.configs.base import Config


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
