"""A look into a few steps: which part of a step the time goes to."""

from __future__ import annotations

from typing import Literal

from lehr_trainer.configs.base import Config, NonNegativeInt, PositiveInt


class ProfileConfig(Config):
    """After ``wait`` and ``warmup`` steps, ``active`` steps are recorded, once a launch."""

    tool: Literal["none", "torch", "nsys"] = "none"
    """torch: a Chrome trace and a summary in the attempt's ``profiles``. nsys: NVTX ranges and a
    capture range for Nsight Systems, which has to start the run: the command is printed."""
    wait: NonNegativeInt = 2
    """Steps passed over first: they compile."""
    warmup: NonNegativeInt = 3
    """Steps profiled and thrown away."""
    active: PositiveInt = 3
    """Steps profiled and kept."""
