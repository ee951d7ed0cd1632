"""How many checkpoints a run writes and keeps, and how large they are: from its config alone."""

from __future__ import annotations

from dataclasses import dataclass
from math import lcm

from lehr_trainer.configs.sizes import FP32
from lehr_trainer.configs.train import TrainConfig
from lehr_trainer.planning.counts import parameter_counts


@dataclass(frozen=True)
class CheckpointPlan:
    size_bytes: int
    """Of one: the weights in fp32 and the optimizer's state. Its JSON is small."""
    saves: int
    """At the interval and after the last step; orders and stops save more."""
    kept: int
    """Of these, after the run's end; until an old one is removed there is one more."""
    keeps_best: bool
    """One before the last is at an evaluated step, so it can be kept as the best."""


def checkpoint_plan(config: TrainConfig) -> CheckpointPlan:
    """Plan the checkpoints of a run; the best is assumed to be an early one.

    They are counted, not listed: there may be millions.
    """
    policy, steps, every = config.checkpoint, config.steps, config.checkpoint.every
    saves = steps // every if every else 0
    saves += policy.save_last and (not every or steps % every > 0)
    # All but the last save are at the interval. The newest of them that is not kept for its age:
    oldest = every * max(0, saves - policy.keep_last)
    by_step = oldest // lcm(every, policy.keep_every) if oldest and policy.keep_every else 0
    best = lcm(every, config.validation.every) if policy.keep_best else 0
    is_kept_by_step = policy.keep_every > 0 and best % policy.keep_every == 0
    counts = parameter_counts(config.model)
    return CheckpointPlan(
        size_bytes=FP32 * counts.total + config.optimizer.state_bytes(counts),
        saves=saves,
        kept=min(saves, policy.keep_last) + by_step + (0 < best <= oldest and not is_kept_by_step),
        keeps_best=0 < best <= every * (saves - 1),
    )
