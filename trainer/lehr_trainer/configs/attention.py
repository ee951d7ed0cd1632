"""Attention: which kernel runs, and whether packed documents see each other."""

from __future__ import annotations

from typing import Any, ClassVar, Literal

from pydantic import field_validator

from lehr_trainer.configs.base import Config

SIXTEEN_BIT_ONLY = frozenset({"flash", "cudnn", "fa3", "fa4"})
"""Backends whose CUDA kernels take fp16 and bf16 operands only."""

TAKES_DENSE_MASK = ("efficient", "math")
"""Backends whose CUDA kernels take a mask of all pairs of tokens."""


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

    @field_validator("backend", mode="before")
    @classmethod
    def _fp8_cannot_train(cls, value: Any) -> Any:
        if isinstance(value, str) and "fp8" in value.lower():
            raise ValueError(
                f"{value!r} cannot train: FP8 attention has no backward pass (FlashAttention's "
                "takes fp16 and bf16 only). Use auto; FP8 is for the linear layers (precision.fp8)"
            )
        return value
