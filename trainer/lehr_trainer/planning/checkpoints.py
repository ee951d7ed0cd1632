"""How many checkpoints a run writes and keeps, and how large they are: from its config alone."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from lehr_trainer.checkpointing.retention import Held, superfluous
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
    """Plan the checkpoints of a run; the best is assumed to be an early one."""
    policy, steps, evaluated = config.checkpoint, config.steps, config.validation.every
    saves = set(range(policy.every, steps + 1, policy.every) if policy.every else ())
    saves |= {steps} if policy.save_last else set()
    losses = {step: None if step % (evaluated or steps) else step for step in saves - {steps}}
    held = [Held(Path(), step, losses.get(step, step)) for step in sorted(saves)]
    counts = parameter_counts(config.model)
    return CheckpointPlan(
        size_bytes=FP32 * counts.total + config.optimizer.state_bytes(counts),
        saves=len(held),
        kept=len(held) - len(superfluous(held, policy)),
        keeps_best=policy.keep_best and any(one.val_loss is not None for one in held[:-1]),
    )
