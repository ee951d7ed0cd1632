"""Loss scaling for fp16, and skipped steps."""

from __future__ import annotations

from typing import Annotated

from pydantic import Field

from lehr_trainer.configs.base import Config, PositiveInt


class LossScaleConfig(Config):
    """Loss scaling for fp16: the loss is scaled up so that small gradients do not vanish
    (Micikevicius et al. 2017). A step whose gradients overflow is skipped, and the scale is halved.
    """

    initial: Annotated[float, Field(gt=0)] = 65_536.0
    """First value of the scale."""
    growth_interval: PositiveInt = 2000
    """Steps without overflow after which the scale doubles."""


class SkipStepConfig(Config):
    """Skips updates whose loss or gradient norm is far above that of the last steps (as in OLMo).

    Off by default: in a sweep it would hide that a learning rate is too high.
    """

    enabled: bool = False
    """Leave out updates whose loss or gradient norm is an outlier."""
    window: Annotated[int, Field(ge=2)] = 128
    """Number of past steps to compare with."""
    sigmas: Annotated[float, Field(gt=0)] = 6.0
    """A spike is more than this many standard deviations above their mean."""
