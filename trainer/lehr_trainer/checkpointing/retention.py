"""Retention: which checkpoints are kept, and how the others are removed."""

from __future__ import annotations

import math
import shutil
from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol, TypeVar

from lehr_trainer.configs.tasks import LOWER_IS_BETTER
from lehr_trainer.configs.train import CheckpointConfig
from lehr_trainer.contract import layout
from lehr_trainer.contract.manifest import read_manifest
from lehr_trainer.errors import BadCheckpoint


@dataclass(frozen=True)
class Held:
    """A checkpoint on disk."""

    path: Path
    step: int
    val_loss: float | None
    ends_stage: bool = False
    score: float | None = None


OF_STAGE = "stage"
"""Reason of a checkpoint at the end of a stage. All are kept: forks begin there."""


def held_checkpoints(run_dir: Path, attempt: int) -> list[Held]:
    """List checkpoints of ``attempt`` and earlier ones, oldest first: by attempt, then by step."""
    held = []
    for folder in layout.attempts(run_dir):
        if (layout.attempt_number(folder) or 0) > attempt:
            break
        for path in layout.checkpoints(folder):
            step = layout.checkpoint_step(path) or 0
            try:
                manifest = read_manifest(path)
            except BadCheckpoint:
                held.append(Held(path, step, None))
            else:
                ends = manifest.reason == OF_STAGE
                held.append(Held(path, step, manifest.val_loss, ends, manifest.score))
    return held


class Judged(Protocol):
    @property
    def val_loss(self) -> float | None: ...
    @property
    def score(self) -> float | None: ...


P = TypeVar("P", bound=Judged)


def best_of(points: Iterable[P], policy: CheckpointConfig) -> P | None:
    """Return the first of the best ones, by val/loss or by the task that ``keep_best`` names; None
    if none has a value.
    """
    metric = policy.keep_best if isinstance(policy.keep_best, str) else None
    sign = -1.0 if metric and not metric.endswith(LOWER_IS_BETTER) else 1.0
    values = ((one.score if metric else one.val_loss, one) for one in points)
    scored = [(sign * value, one) for value, one in values if value is not None]
    finite = [(value, one) for value, one in scored if math.isfinite(value)]
    return min(finite, key=lambda pair: pair[0])[1] if finite else None


def superfluous(held: Sequence[Held], policy: CheckpointConfig) -> list[Held]:
    """Select the checkpoints of ``held`` (oldest first) that the policy does not keep."""
    kept = {*held[-policy.keep_last :], *(one for one in held if one.ends_stage)}
    if policy.keep_best and (best := best_of(held, policy)) is not None:
        kept.add(best)
    if policy.keep_every:
        kept.update(one for one in held if one.step % policy.keep_every == 0)
    return [one for one in held if one not in kept]


def prune(
    run_dir: Path, attempt: int, policy: CheckpointConfig, *, spare: Collection[str] = ()
) -> list[Held]:
    """Remove the checkpoints that the policy does not keep; returns them.

    ``spare`` are folders, relative to the run directory, that are kept in any case. Nothing is
    removed if a later attempt exists: it has replaced this one, and may be reading any of these.
    """
    newest = max((layout.attempt_number(p) or 0 for p in layout.attempts(run_dir)), default=0)
    if newest > attempt:
        return []
    spared = {run_dir / path for path in spare}
    held = held_checkpoints(run_dir, attempt)
    gone = [one for one in superfluous(held, policy) if one.path not in spared]
    for one in gone:
        # Without a manifest it is no longer a checkpoint, so a crash leaves no half-removed one.
        (one.path / layout.MANIFEST).unlink()
        shutil.rmtree(one.path)
    # What earlier attempts were writing or removing when they died.
    for folder in layout.attempts(run_dir):
        if (layout.attempt_number(folder) or 0) >= attempt:
            break
        for path in (folder / layout.CHECKPOINTS).glob("step-*"):
            if not (path / layout.MANIFEST).is_file() or path.suffix == ".tmp":
                shutil.rmtree(path)
    return gone
