"""Copies of checkpoints: where each lies, and which stay.

Those stay that the trainer's policy keeps or a fork waits for.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from pathlib import Path
from typing import Any, Protocol

from lehr_trainer.checkpointing.retention import Held, superfluous
from lehr_trainer.configs.train import CheckpointConfig


def copies_at(spec: Mapping[str, Any], run_id: str, path: str) -> str | None:
    """The URL of the copy of a run's checkpoint; None where the spec asks for no copies."""
    place = spec.get("checkpoints", {}).get("upload")
    return None if place is None else f"{place}/{run_id}/{path}"


class RetainedCheckpoint(Protocol):
    @property
    def attempt(self) -> int: ...
    @property
    def step(self) -> int: ...
    @property
    def path(self) -> str: ...
    @property
    def val_loss(self) -> float | None: ...


def kept_because(
    point: RetainedCheckpoint, there: Sequence[RetainedCheckpoint], policy: CheckpointConfig
) -> list[str]:
    """Why the policy keeps one of those that are there, in words; nothing when it does not."""
    ordered = sorted(there, key=lambda one: (one.attempt, one.step))
    reasons = []
    if point in ordered[-policy.keep_last :]:
        reasons.append(f"one of the last {policy.keep_last}")
    scored = [one for one in ordered if one.val_loss is not None]
    if policy.keep_best and scored and point is min(scored, key=lambda one: one.val_loss or 0.0):
        reasons.append("the best")
    if policy.keep_every and point.step % policy.keep_every == 0:
        reasons.append(f"every {policy.keep_every:,} steps")
    return reasons


def copies_to_remove(
    there: Sequence[RetainedCheckpoint], policy: CheckpointConfig, needed: Collection[str]
) -> list[str]:
    """Paths of the copies that nothing keeps any more. ``needed`` are paths that forks wait for."""
    ordered = sorted(there, key=lambda one: (one.attempt, one.step))
    held = [Held(Path(one.path), one.step, one.val_loss) for one in ordered]
    return [str(one.path) for one in superfluous(held, policy) if str(one.path) not in needed]
