"""The learning rate at a step, in closed form: resuming needs no scheduler state."""

from __future__ import annotations

import math

from lehr_trainer.configs.schedule import ScheduleConfig


def lr_factor(schedule: ScheduleConfig, step: int, steps: int) -> float:
    """Return the share of the peak at optimizer step ``step`` (the first is 1) of ``steps``.

    Warmup climbs in equal parts and reaches the peak at its last step. Cosine and wsd reach
    ``min_lr_ratio`` at the run's last step.
    """
    step, steps = step - schedule.starts_after, steps - schedule.starts_after
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
