"""Sizes that the memory formulas of optimizers and losses are computed from. Pure."""

from __future__ import annotations

from dataclasses import dataclass

FP32, BF16, FP8 = 4, 2, 1
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
    other: int = 0
    """Of a model that is not Lehr's: how many more it has, less than 0 if it has fewer."""
    matrices: tuple[tuple[int, int, int], ...] = ()
    """Rows, columns and number of the blocks' matrices, one entry for each shape. GPT-2's query,
    key and value are three, as Muon takes them."""

    @property
    def total(self) -> int:
        return self.embedding + self.head + self.attention + self.mlp + self.norms + self.other

    @property
    def non_embedding(self) -> int:
        return self.total - self.embedding - self.head

    @property
    def layers(self) -> int:
        """The linear layers of all blocks."""
        return self.attention + self.mlp

    @property
    def largest_matrix(self) -> int:
        """Values of the blocks' largest matrix."""
        return max((rows * columns for rows, columns, _ in self.matrices), default=0)

    @property
    def largest(self) -> int:
        """Values of the largest parameter."""
        return max(self.embedding, self.head, self.largest_matrix)


@dataclass(frozen=True)
class HeadSize:
    """A forward pass of the head: ``tokens`` rows of ``hidden`` values, ``vocabulary`` logits each.

    ``half``: the head's product rounds its operands to 16 bits. ``on_cpu``: such a product widens
    them again, since a CPU has no kernel with 16-bit operands and an fp32 result.
    """

    tokens: int
    hidden: int
    vocabulary: int
    half: bool
    on_cpu: bool = False
    width: int = 0
    """Bytes of one of the hidden states' values; if not given, that of an operand."""
    capped: bool = False
    """Logits are bounded, which ``standard`` does in a tensor of its own."""

    def __post_init__(self) -> None:
        if not self.width:
            object.__setattr__(self, "width", BF16 if self.half else FP32)

    @property
    def logits(self) -> int:
        """How many logits there are in all."""
        return self.tokens * self.vocabulary

    @property
    def weights(self) -> int:
        """How many weights the head has."""
        return self.vocabulary * self.hidden

    @property
    def copied_weight_bytes(self) -> int:
        """Bytes of the weight's rounded copy; 0 where nothing is rounded."""
        return BF16 * self.weights if self.half else 0

    @property
    def widened_weight_bytes(self) -> int:
        """Bytes of that copy in fp32, which a CPU makes for each product."""
        return FP32 * self.weights if self.half and self.on_cpu else 0

    @property
    def operand_bytes(self) -> int:
        """Bytes of the copies of both operands that are made to round them."""
        rounds_hidden = self.half and self.width == FP32
        copied = BF16 * self.tokens * self.hidden if rounds_hidden else 0
        return self.copied_weight_bytes + copied

    @property
    def gradient_bytes(self) -> int:
        """Bytes of both gradients: the weight's in fp32, the hidden states' in their own width."""
        return FP32 * self.weights + self.width * self.tokens * self.hidden
