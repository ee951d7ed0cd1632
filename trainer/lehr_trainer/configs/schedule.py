"""Learning-rate schedule of a run: cosine, constant, or warmup-stable-decay."""

from __future__ import annotations

import math
from typing import ClassVar, Literal, Self

from pydantic import model_validator

from lehr_trainer.configs.base import Config, Fraction, NonNegativeInt, OrNone


class ScheduleConfig(Config):
    """Learning rate at step s (the first is 1), as a factor of the peak.

    To resume from a checkpoint under another schedule, fork the run with ``starts_after`` at the
    checkpoint's step: the new schedule, its warmup included, spans the remaining steps.
    """

    shorthand: ClassVar[str] = "name"

    name: Literal["cosine", "constant", "wsd"] = "cosine"
    """cosine: down to ``min_lr_ratio`` at the last step. constant: the peak to the end.
    wsd: warmup, stable, decay (MiniCPM, arXiv:2404.06395): the peak, then down at the end."""
    warmup_steps: NonNegativeInt | None = None
    """Linear warmup; give this or ``warmup_ratio``."""
    warmup_ratio: Fraction | None = None
    """Warmup as a share of the schedule's steps; 0.02 when neither is given."""
    warmup_from: Fraction = 0.0
    """Where warmup begins, as a share of the peak: for a restart, where the old schedule was."""
    min_lr_ratio: Fraction = 0.1
    """Where cosine and wsd end, as a share of the peak."""
    decay_steps: NonNegativeInt | None = None
    """wsd: steps of the decay; give this or ``decay_ratio``."""
    decay_ratio: Fraction | None = None
    """wsd: the decay as a share of the schedule's steps; 0.1 when neither is given."""
    decay_shape: Literal["linear", "sqrt"] = "linear"
    """wsd: linear, or 1 - sqrt of the share done (arXiv:2405.18392), which falls faster first."""
    starts_after: NonNegativeInt = 0
    """Step after which this schedule begins; 0 unless the run was forked to change it."""
    ends_after: OrNone[NonNegativeInt] = None
    """Step at which it ends, if not at the last one of the run: set for a stage."""

    @model_validator(mode="after")
    def _one_of_each(self) -> Self:
        if self.warmup_steps is not None and self.warmup_ratio is not None:
            raise ValueError("give warmup_steps or warmup_ratio, not both")
        if self.decay_steps is not None and self.decay_ratio is not None:
            raise ValueError("give decay_steps or decay_ratio, not both")
        return self

    def warmup(self, steps: int) -> int:
        """Count the warmup steps of a schedule of ``steps`` steps."""
        if self.warmup_steps is not None:
            return self.warmup_steps
        return round(steps * (0.02 if self.warmup_ratio is None else self.warmup_ratio))

    def decay(self, steps: int) -> int:
        """Count the steps of wsd's decay in a schedule of ``steps`` steps."""
        if self.decay_steps is not None:
            return self.decay_steps
        return round(steps * (0.1 if self.decay_ratio is None else self.decay_ratio))

    def check_fits(self, steps: int) -> None:
        """Raise ValueError if warmup, decay and start do not fit into ``steps``."""
        steps = self.ends_after or steps
        if self.starts_after >= steps:
            raise ValueError(
                f"schedule.starts_after {self.starts_after} is not before the run's last step, "
                f"{steps}"
            )
        span = steps - self.starts_after
        parts = self.warmup(span) + (self.decay(span) if self.name == "wsd" else 0)
        if parts > span:
            what = "warmup and decay take" if self.name == "wsd" else "warmup takes"
            raise ValueError(f"schedule: {what} {parts} steps, but it has only {span}")


def lr_factor(schedule: ScheduleConfig, step: int, steps: int) -> float:
    """Return the share of the peak at optimizer step ``step`` (the first is 1) of ``steps``.

    Warmup climbs in equal parts and reaches the peak at its last step. Cosine and wsd reach
    ``min_lr_ratio`` at the run's last step, or the schedule's own.
    """
    steps = (schedule.ends_after or steps) - schedule.starts_after
    step -= schedule.starts_after
    warmup = schedule.warmup(steps)
    if step <= warmup:
        return schedule.warmup_from + (1.0 - schedule.warmup_from) * max(step, 0) / max(1, warmup)
    if schedule.name == "constant":
        return 1.0
    falling = steps - warmup if schedule.name == "cosine" else schedule.decay(steps)
    done = min(1.0, max(0.0, 1.0 - (steps - step) / max(1, falling)))
    if schedule.name == "cosine":
        height = 0.5 * (1.0 + math.cos(math.pi * done))
    else:
        height = 1.0 - (math.sqrt(done) if schedule.decay_shape == "sqrt" else done)
    return schedule.min_lr_ratio + (1.0 - schedule.min_lr_ratio) * height
