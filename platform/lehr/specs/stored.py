"""Values of a recorded run's spec, for Lehr's trainer and for programs alike."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from lehr.parameter_names import ARGUMENTS, seed_path
from lehr_trainer.configs.train import CheckpointConfig

Stored = Mapping[str, Any]


def total_steps(spec: Stored) -> int | None:
    """Return the number of its steps; None if only its program determines it."""
    train = spec.get("train")
    return int(train["steps"]) if train else _program_steps(spec["trainer"])


def tokens_per_step(spec: Stored) -> int:
    train = spec.get("train")
    if not train:
        return int(spec["trainer"]["tokens_per_step"])
    return int(train["batch"]["sequences"] * train["batch"]["sequence_length"])


def extra_tokens(spec: Stored) -> int:
    """Return what to add to the tokens of its steps for those that were trained on: not 0 in a
    fork that changed the tokens of a step.
    """
    start = (spec.get("train") or {}).get("forked_at")
    if not start:
        return 0
    return int(start["after_tokens"] - start["after_steps"] * tokens_per_step(spec))


def seed(spec: Stored) -> int | None:
    """Return the seed; None for a program without an argument of such a name."""
    train = spec.get("train")
    if train:
        return int(train["seed"])
    args = spec["trainer"]["args"]
    path = seed_path(args)
    found = None if path is None else args[path.removeprefix(ARGUMENTS)]
    return found if isinstance(found, int) else None


def checkpoint_policy(spec: Stored) -> CheckpointConfig:
    """Return which checkpoints are kept."""
    train = spec.get("train")
    if train:
        return CheckpointConfig.model_validate(train["checkpoint"])
    return program_policy(spec["trainer"]["keep"])


def program_policy(keep: int) -> CheckpointConfig:
    """Return the policy of a program's run: its newest checkpoints stay."""
    return CheckpointConfig(keep_last=keep, keep_best=False)


def stop_grace_s(spec: Stored) -> float | None:
    """Return the seconds that a program has to save when it is stopped; None for Lehr's trainer."""
    program = spec.get("trainer")
    return float(program["stop_grace_s"]) if program else None


def config(spec: Stored) -> dict[str, Any]:
    """Return what the run's trainer is configured by: ``train``, or ``trainer`` of a program."""
    found: dict[str, Any] = spec.get("train") or spec["trainer"]
    return found


def _program_steps(trainer: Stored) -> int | None:
    named = trainer["steps_arg"]
    steps = trainer["steps"] if named is None else trainer["args"][named]
    return None if steps is None else int(steps)


def saves_when_stopped(spec: Stored) -> bool:
    """Return whether the run saves when it is stopped: Lehr's trainer does, a program that names
    what it saves, too.
    """
    program = spec.get("trainer") or {}
    return not program or bool(program.get("saves"))
