"""FP8 for the linear layers of the blocks."""

from __future__ import annotations

from typing import ClassVar, Literal

from lehr_trainer.configs.base import Config


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
