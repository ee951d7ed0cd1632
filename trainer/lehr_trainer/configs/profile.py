"""Profiling of a few steps: which part of a step takes the time."""

from __future__ import annotations

from typing import Literal

from lehr_trainer.configs.base import Config, NonNegativeInt, PositiveInt


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
