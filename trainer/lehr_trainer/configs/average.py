"""The config of a running mean of the weights, and the bytes that it takes."""

from __future__ import annotations

from typing import Annotated, Self

from pydantic import Field, model_validator

from lehr_trainer.configs.base import Config, PositiveInt
from lehr_trainer.configs.sizes import FP32


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
