"""Diagnostic metrics that a run logs besides its loss."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field

from lehr_trainer.configs.base import Config, NonNegativeInt, PositiveInt


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
