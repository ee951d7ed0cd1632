"""Retention: which checkpoints are kept, and how the others are removed."""

from __future__ import annotations

import shutil
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from pathlib import Path

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
                held.append(Held(path, step, manifest.val_loss, manifest.reason == OF_STAGE))
    return held


def superfluous(held: Sequence[Held], policy: CheckpointConfig) -> list[Held]:
    """Select the checkpoints of ``held`` (oldest first) that the policy does not keep."""
    kept = {*held[-policy.keep_last :], *(one for one in held if one.ends_stage)}
    scored = [one for one in held if one.val_loss is not None]
    if policy.keep_best and scored:
        kept.add(min(scored, key=lambda one: one.val_loss or 0.0))
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
