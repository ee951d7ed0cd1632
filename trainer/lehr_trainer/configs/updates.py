"""Which gradients become an update: loss scaling for fp16, and steps that are skipped."""

from __future__ import annotations

from typing import Annotated

from pydantic import Field

from lehr_trainer.configs.base import Config, PositiveInt


class LossScaleConfig(Config):
    """fp16 alone: the loss is scaled up so that small gradients do not vanish (Micikevicius et
    al. 2017); a step whose gradients overflow is skipped and the scale halved.
    """

    initial: Annotated[float, Field(gt=0)] = 65_536.0
    """Where the scale begins."""
    growth_interval: PositiveInt = 2000
    """Steps without overflow after which the scale doubles."""


class SkipStepConfig(Config):
    """Skips the update where loss or gradient norm leaps far above the last steps' (as OLMo does).

    Off by default: in a sweep it would hide that a learning rate is too high.
    """

    enabled: bool = False
    """Leave out updates whose loss or gradient norm is an outlier."""
    window: Annotated[int, Field(ge=2)] = 128
    """How many of the last steps' values are looked back on."""
    sigmas: Annotated[float, Field(gt=0)] = 6.0
    """A leap is more than so many standard deviations above their mean."""
