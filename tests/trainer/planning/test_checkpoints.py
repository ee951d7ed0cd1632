"""The planned checkpoints are those that a training saves and keeps."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from lehr_testing.assembled import begin, recorded
from lehr_testing.specs import train
from lehr_trainer.configs.train import TrainConfig
from lehr_trainer.planning.counts import checkpoint_plan


@pytest.mark.parametrize(
    ("steps", "every", "policy", "planned"),
    [
        (1000, 100, {"every": 500}, (2, 2, True)),
        (1000, 0, {"every": 100, "keep_last": 3}, (10, 3, False)),
        (1000, 100, {"every": 100, "keep_every": 300}, (10, 5, True)),
        (950, 100, {"every": 100, "keep_best": False}, (10, 2, False)),
        (7000, 300, {"every": 1000}, (7, 3, True)),
        (100, 50, {"every": 0}, (1, 1, False)),
        (100, 50, {"every": 0, "save_last": False}, (0, 0, False)),
        (
            10**15,
            6,
            {"every": 4, "keep_every": 10},
            (250_000_000_000_000, 50_000_000_000_002, True),
        ),
    ],
)
def test_saves_and_kept_ones_follow_the_policy(
    steps: int, every: int, policy: dict[str, Any], planned: tuple[int, int, bool]
) -> None:
    changes = {"checkpoint": policy, "validation": {"every": every}}
    config = TrainConfig.model_validate(train(Path("x"), steps=steps, **changes))
    made = checkpoint_plan(config)
    assert (made.saves, made.kept, made.keeps_best) == planned


def test_a_training_saves_and_keeps_what_is_planned(tmp_path: Path, corpus: Path) -> None:
    training = begin(
        tmp_path / "run",
        corpus,
        steps=9,
        validation={"tokens": 512, "share": 0.1, "every": 2},
        checkpoint={"every": 2, "keep_every": 6},
    )
    # Each is worse than the one before: the best is the first.
    losses = iter(range(1, 9))
    training.evaluate = lambda: float(next(losses))  # type: ignore[method-assign]
    with training.loader:
        training.run()
    saved, gone = recorded(training, "checkpoint"), recorded(training, "checkpoint_removed")
    planned = checkpoint_plan(training.config)
    assert (len(saved), len(saved) - len(gone)) == (planned.saves, planned.kept) == (5, 4)
    assert 0 < saved[-1]["size_bytes"] - planned.size_bytes < 100_000  # its JSON and headers
