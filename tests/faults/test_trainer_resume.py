"""A resumed training ends bitwise like an undisturbed one, whatever ended it and however it saves.

Compared bitwise, over weights and optimizer, with one undisturbed run for each number of ranks:
that the ways to save agree is part of the claim. Kinds of optimizers and numbers are in
tests/trainer/process/test_switches.py.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from pathlib import Path

import pytest

from lehr_testing.specs import text_corpus
from lehr_testing.trainer import (
    KILL,
    NO_SPACE,
    TERMINATE,
    different_tensors,
    digests,
    finish,
    losses,
    make_run,
    records,
    sabotage,
    sabotage_save,
    train_to_end,
    training,
)
from lehr_trainer.checkpointing.checkpoint import verify
from lehr_trainer.contract import layout

pytestmark = [pytest.mark.faults, pytest.mark.slow, pytest.mark.timeout(900)]

STEPS = 12


@pytest.fixture(scope="module")
def corpus(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return text_corpus(tmp_path_factory.mktemp("corpus") / "texts")


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("prepared")


@pytest.fixture(scope="module")
def undisturbed(
    tmp_path_factory: pytest.TempPathFactory, corpus: Path, data: Path
) -> Callable[[int], Path]:
    """By the number of ranks, the attempt that the others are compared with."""

    @cache
    def attempt(ranks: int) -> Path:
        run = make_run(tmp_path_factory.mktemp("undisturbed"), corpus, steps=STEPS)
        train_to_end(run, ranks=ranks, data=data)
        return run / "attempt-1"

    return attempt


@pytest.mark.parametrize("ending", ["killed in a step", "killed in a save", "SIGTERM"])
@pytest.mark.parametrize("asynchronous", [False, True], ids=["sync", "async"])
@pytest.mark.parametrize("ranks", [1, 2])
def test_resumed_run_is_bitwise_equal_to_the_undisturbed_run(
    ranks: int,
    asynchronous: bool,
    ending: str,
    tmp_path: Path,
    corpus: Path,
    data: Path,
    undisturbed: Callable[[int], Path],
) -> None:
    saving = {"every": 5, "asynchronous": asynchronous}
    run = make_run(tmp_path / "run", corpus, steps=STEPS, checkpoint=saving)
    first, resumed_at = run / "attempt-1", 5
    if ending == "killed in a step":
        saved = layout.checkpoint_dir(first, 5)
        harm = sabotage(at_step=8, act=KILL, after=saved)
    elif ending == "killed in a save":
        harm = sabotage_save(layout.checkpoint_dir(first, 10), call=3, act=KILL)
    else:
        # The last rank alone gets it: rank 1 of two.
        harm, resumed_at = sabotage(at_step=7, act=TERMINATE, ranks=(ranks - 1,)), 7
    with training(run, ranks=ranks, data=data, code=harm) as process:
        code, output = finish(process, within_s=300)
    assert (code == 0) == (ending == "SIGTERM"), output
    if ending == "killed in a save":
        torn = layout.checkpoint_dir(first, 10)
        assert torn.with_name(torn.name + ".tmp").is_dir(), "it was not killed in the save"
        assert not torn.exists()
    if ending == "SIGTERM":
        assert [r["step"] for r in records(first, "checkpoint")] == [5, 7]
        assert records(first, "finished")[0]["outcome"] == "stopped"

    train_to_end(run, ranks=ranks, data=data)
    second, want = run / "attempt-2", undisturbed(ranks)
    assert records(second, "resumed")[0]["step"] == resumed_at
    assert losses(first, second) == losses(want)
    assert different_tensors(second, want) == []
    assert digests(second) == digests(want)


def test_three_ranks_sum_gradients_equally_after_a_resume(
    tmp_path: Path, corpus: Path, data: Path
) -> None:
    """With three, rounding depends on where in its bucket a gradient lies; two cannot show it."""
    run, whole = (
        make_run(
            tmp_path / name,
            corpus,
            steps=7,
            batch={"sequences": 12, "sequence_length": 32},
            parallel={"bucket_mb": 0.3},
            checkpoint={"every": 3, "asynchronous": False},
        )
        for name in ("run", "whole")
    )
    train_to_end(whole, ranks=3, data=data)
    harm = sabotage(at_step=5, act=KILL)
    with training(run, ranks=3, data=data, code=harm) as process:
        finish(process, within_s=300)
    train_to_end(run, ranks=3, data=data)
    assert records(run / "attempt-2", "resumed")[0]["step"] == 3
    assert different_tensors(run / "attempt-2", whole / "attempt-1") == []


@pytest.mark.parametrize("asynchronous", [False, True], ids=["sync", "async"])
def test_full_disk_ends_both_ranks_with_that_reason(
    asynchronous: bool, tmp_path: Path, corpus: Path, data: Path
) -> None:
    saving = {"every": 5, "asynchronous": asynchronous}
    run = make_run(tmp_path / "run", corpus, steps=100_000, checkpoint=saving)
    attempt = run / "attempt-1"
    torn = layout.checkpoint_dir(attempt, 10)
    harm = sabotage_save(torn, call=3, act=NO_SPACE)
    with training(run, ranks=2, data=data, code=harm) as process:
        code, output = finish(process, within_s=300)
    assert code == 1
    finished = records(attempt, "finished")[0]
    assert (finished["outcome"], finished["cause"]) == ("failed", "disk_full"), output
    assert "no space left for checkpoint step-00000010" in finished["message"]
    assert [record["step"] for record in records(attempt, "checkpoint")] == [5]
    assert [path.name for path in (attempt / layout.CHECKPOINTS).iterdir()] == ["step-00000005"]
    verify(layout.checkpoint_dir(attempt, 5))
