"""Sizes that the memory formulas of optimizers and losses are computed from. Pure."""

from __future__ import annotations

from dataclasses import dataclass

FP32, BF16 = 4, 2
"""Bytes of a value."""


@dataclass(frozen=True)
class ParameterCounts:
    """Parameters by where they sit; each is counted once, a tied embedding as ``embedding``."""

    embedding: int
    """GPT-2's positions too."""
    head: int
    """0 when the head is tied to the embedding."""
    attention: int
    """Of all layers."""
    mlp: int
    """Of all layers."""
    norms: int
    """Of all layers, and the last one."""

    @property
    def total(self) -> int:
        return self.embedding + self.head + self.attention + self.mlp + self.norms

    @property
    def non_embedding(self) -> int:
        return self.total - self.embedding - self.head

    @property
    def layers(self) -> int:
        """The linear layers of all blocks."""
        return self.attention + self.mlp


@dataclass(frozen=True)
class HeadSize:
    """A forward pass of the head: ``tokens`` rows of ``hidden`` values, ``vocabulary`` logits each.

    ``half``: the head's product rounds its operands to 16 bits.
    """

    tokens: int
    hidden: int
    vocabulary: int
    half: bool

    @property
    def logits(self) -> int:
        """How many logits there are in all."""
        return self.tokens * self.vocabulary

    @property
    def weights(self) -> int:
        """How many weights the head has."""
        return self.vocabulary * self.hidden

    @property
    def operand_bytes(self) -> int:
        """Bytes of the rounded copies of both operands; 0 where nothing is rounded."""
        return BF16 * (self.weights + self.tokens * self.hidden) if self.half else 0

    @property
    def gradient_bytes(self) -> int:
        """Bytes of both gradients: the weight's in fp32, the hidden states' in their own width."""
        return FP32 * self.weights + (BF16 if self.half else FP32) * self.tokens * self.hidden
