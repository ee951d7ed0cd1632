"""Activation checkpointing: what is recomputed in backward rather than kept."""

from __future__ import annotations

from typing import ClassVar, Literal

from lehr_trainer.configs.base import Config, PositiveInt


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
