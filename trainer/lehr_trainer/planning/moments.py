"""Memory of one moment of a step, by kind: what a plan computes and what a trace reads. Pure."""

from __future__ import annotations

from dataclasses import dataclass

PHASES = ("resting", "forward", "loss", "backward", "optimizer", "evaluation")
"""The phases of a step. Each is represented by its moment of most memory."""


@dataclass(frozen=True)
class MemoryMoment:
    """Bytes on one rank's device."""

    parameters: int
    """With the model's constant tables."""
    gradients: int
    """Of the parameters; with several ranks they are DDP's buckets."""
    optimizer: int
    """The optimizer's state."""
    activations: int
    """What the forward pass keeps for the backward pass, 16-bit copies of weights included."""
    temporaries: int
    """All else: logits, gradients on their way, what is recomputed, what an update allocates."""

    @property
    def total(self) -> int:
        return (
            self.parameters + self.gradients + self.optimizer + self.activations + self.temporaries
        )
