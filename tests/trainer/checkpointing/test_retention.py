"""Which checkpoints retention keeps, and what it removes."""

from __future__ import annotations

import math
from dataclasses import replace
from pathlib import Path

from lehr_testing.saved_checkpoints import attempt, save
from lehr_trainer.checkpointing.retention import Held, prune, superfluous
from lehr_trainer.configs.train import CheckpointConfig
from lehr_trainer.contract import layout


def held(*steps_and_losses: tuple[int, float | None]) -> list[Held]:
    return [Held(Path(f"step-{step}"), step, loss) for step, loss in steps_and_losses]


def kept_steps(policy: CheckpointConfig, every: list[Held]) -> list[int]:
    gone = superfluous(every, policy)
    return [one.step for one in every if one not in gone]


def test_retention_keeps_the_last_the_best_and_every_mth() -> None:
    every = held((10, 3.0), (20, 2.0), (30, 2.5), (40, None), (50, 2.2), (60, 2.6))
    assert kept_steps(CheckpointConfig(keep_last=2, keep_best=False), every) == [50, 60]
    assert kept_steps(CheckpointConfig(keep_last=2), every) == [20, 50, 60]
    assert kept_steps(CheckpointConfig(keep_last=3, keep_every=10), every) == [
        10,
        20,
        30,
        40,
        50,
        60,
    ]
    assert kept_steps(CheckpointConfig(keep_every=30), every) == [20, 30, 50, 60]
    scored = [
        replace(one, score=score)
        for one, score in zip(every, (0.2, 0.4, 0.4, math.nan, 0.1, None), strict=True)
    ]
    assert kept_steps(CheckpointConfig(keep_best="task/mean"), scored) == [20, 50, 60]
    by_rate = CheckpointConfig(keep_best="task/own/bits_per_byte")
    assert kept_steps(by_rate, scored[:-1]) == [40, 50]
    assert kept_steps(by_rate, scored[:4]) == [10, 30, 40]
    every[0] = replace(every[0], ends_stage=True)
    assert kept_steps(CheckpointConfig(keep_best=False), every) == [10, 50, 60]


def test_pruning_removes_whole_folders_and_leftovers_of_earlier_attempts(tmp_path: Path) -> None:
    first, second = attempt(tmp_path, 1), attempt(tmp_path, 2)
    for step in (1, 2):
        save(first, step)
    torn = layout.checkpoint_dir(first, 3)
    torn.with_name("step-00000003.tmp").mkdir()
    torn.mkdir()
    save(second, 3)
    gone = prune(tmp_path, 2, CheckpointConfig(keep_last=2))
    assert [one.path for one in gone] == [layout.checkpoint_dir(first, 1)]
    assert sorted(p.name for p in (first / layout.CHECKPOINTS).iterdir()) == ["step-00000002"]
    assert layout.checkpoints(second)


def test_a_replaced_attempt_prunes_nothing(tmp_path: Path) -> None:
    first = attempt(tmp_path, 1)
    for step in (1, 2, 3):
        save(first, step)
    attempt(tmp_path, 2)
    assert prune(tmp_path, 1, CheckpointConfig(keep_last=2)) == []
    assert len(layout.checkpoints(first)) == 3
