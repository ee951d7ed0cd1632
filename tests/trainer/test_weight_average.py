"""Averages of weights: against hand-made ones in float64, over real trainings with kill and resume."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
import torch
from pydantic import ValidationError
from safetensors.torch import load_file
from torch import Tensor

from lehr_testing.assembled import begin, recorded
from lehr_testing.specs import train as train_values
from lehr_testing.trainer import (
    KILL,
    digests,
    finish,
    losses,
    make_run,
    records,
    sabotage,
    train_to_end,
    training,
)
from lehr_trainer.checkpointing import staging
from lehr_trainer.checkpointing.checkpoint import read_manifest, read_tensors
from lehr_trainer.configs.train import TrainConfig
from lehr_trainer.contract import layout
from lehr_trainer.contract.orders import LaunchNote
from lehr_trainer.errors import BadConfig
from lehr_trainer.export.command import main as export
from lehr_trainer.train import Training

LAST = {"last": 3, "every": 2}
EMA = {"ema": 0.8, "every": 2}
STEPS = 12
EVALUATED: dict[str, Any] = {"validation": {"tokens": 512, "share": 0.1, "every": 3}}


def watch_weights(made: Training) -> dict[int, dict[str, Tensor]]:
    """Keep the weights after each step from now on, in float64."""
    kept: dict[int, dict[str, Tensor]] = {}
    whole = made.take_step

    def take_step() -> None:
        whole()
        weights = made.model.named_parameters()
        kept[made.progress.step] = {name: w.detach().double() for name, w in weights}

    made.take_step = take_step  # type: ignore[method-assign]
    return kept


def by_hand(
    average: Mapping[str, Any], weights: Mapping[int, Mapping[str, Tensor]], step: int
) -> dict[str, Tensor]:
    """Sum the snapshots until ``step`` with the weights of their closed form."""
    every = average["every"]
    steps = [each for each in sorted(weights) if each <= step and each % every == 0]
    if "last" in average:
        steps = steps[-average["last"] :]
        shares = dict.fromkeys(steps, 1.0)
    else:
        shares = {each: average["ema"] ** (steps[-1] - each) for each in steps}
    total = sum(shares.values())
    return {
        name: sum(shares[each] / total * weights[each][name] for each in steps)  # type: ignore[misc]
        for name in weights[step]
    }


def values(made: Training) -> dict[int, dict[str, float]]:
    return {record["step"]: record["values"] for record in recorded(made, "evaluation")}


def completed(made: Training) -> Training:
    with made.loader:
        assert made.run().outcome == "completed"
    return made


@pytest.mark.parametrize("average", [LAST, EMA], ids=["last", "ema"])
def test_average_is_the_hand_made_one_and_changes_nothing_of_the_training(
    tmp_path: Path, corpus: Path, average: dict[str, Any]
) -> None:
    plain = completed(begin(tmp_path / "plain", corpus, steps=STEPS, **EVALUATED))
    made = begin(tmp_path / "run", corpus, steps=STEPS, average=average, **EVALUATED)
    weights = watch_weights(made)
    completed(made)

    def train_losses(of: Training) -> list[float]:
        return [record["values"]["train/loss"] for record in recorded(of, "metrics")]

    assert train_losses(made) == train_losses(plain)
    for name, weight in plain.model.named_parameters():
        assert torch.equal(weight, dict(made.model.named_parameters())[name])
    logged = values(made)
    # At step 3 there is one snapshot, which is no average.
    assert [step for step, each in logged.items() if "val/average/loss" in each] == [6, 9, 12]
    assert {step: each["val/loss"] for step, each in logged.items()} == {
        step: each["val/loss"] for step, each in values(plain).items()
    }
    for step in (6, 9, 12):
        want = by_hand(average, weights, step)
        for name, weight in made.model.named_parameters():
            weight.data.copy_(want[name])
        evaluated = made._held_out_values()
        for name, value in evaluated.items():
            own = logged[step][f"val/average/{name.removeprefix('val/')}"]
            assert own == pytest.approx(value, rel=1e-6)
    assert made.average is not None
    with made.average.swapped_in():
        for name, weight in made.model.named_parameters():
            torch.testing.assert_close(weight.double(), want[name], rtol=2e-7, atol=1e-9)
    assert export([str(tmp_path / "run"), str(tmp_path / "out"), "--average"]) == 0
    exported = load_file(tmp_path / "out" / "model.safetensors")
    assert len(exported) == len(want)
    for name, weight in exported.items():
        assert torch.equal(weight, made.average._mean(name.removeprefix("model.")))
    card = (tmp_path / "out" / "README.md").read_text()
    assert f"**{logged[12]['val/average/loss']:.4f}**, of this mean of weights." in card


def killed(folder: Path, corpus: Path, average: dict[str, Any], data: Path, *, ranks: int) -> Path:
    """Train a run until step 8, and kill it; return it."""
    policy = {"every": 5, "keep_every": 5}
    run = make_run(folder, corpus, average=average, checkpoint=policy, **EVALUATED)
    saved = layout.checkpoint_dir(run / "attempt-1", 5)
    harm = sabotage(at_step=8, act=KILL, after=saved)
    with training(run, ranks=ranks, data=data, code=harm) as process:
        finish(process)
    assert not records(run / "attempt-1", "finished")
    return run


def averaged_losses(*attempts: Path) -> dict[int, float]:
    evaluations = [record for attempt in attempts for record in records(attempt, "evaluation")]
    return {one["step"]: one["values"].get("val/average/loss") for one in evaluations}


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("prepared")


@pytest.mark.parametrize(("average", "ranks"), [(LAST, 1), (EMA, 1), (EMA, 2)])
def test_resumed_average_is_bitwise_that_of_an_undisturbed_run(
    tmp_path: Path, corpus: Path, data: Path, average: dict[str, Any], ranks: int
) -> None:
    whole = make_run(tmp_path / "whole", corpus, average=average, **EVALUATED)
    train_to_end(whole, ranks=ranks, data=data)
    run = killed(tmp_path / "run", corpus, average, data, ranks=ranks)
    train_to_end(run, ranks=ranks, data=data)
    assert digests(run / "attempt-2") == digests(whole / "attempt-1")
    assert "average.safetensors" in digests(run / "attempt-2")
    both = (run / "attempt-1", run / "attempt-2")
    assert averaged_losses(*both) == averaged_losses(whole / "attempt-1")
    if ranks == 2:
        alone = make_run(tmp_path / "alone", corpus, average=average, **EVALUATED)
        train_to_end(alone, data=data)
        want = averaged_losses(alone / "attempt-1")
        assert averaged_losses(*both) == pytest.approx(want, abs=5e-5)
        assert losses(*both) == pytest.approx(losses(alone / "attempt-1"), abs=5e-5)


def test_snapshots_pass_to_another_number_of_ranks(
    tmp_path: Path, corpus: Path, data: Path
) -> None:
    run = killed(tmp_path / "run", corpus, {"last": 5, "every": 2}, data, ranks=2)
    train_to_end(run, data=data)
    first, last = (layout.checkpoints(run / f"attempt-{n}")[-1] for n in (1, 2))
    before, after = (read_tensors(each, read_manifest(each), "average") for each in (first, last))
    # Slots of steps 2 and 4, of which step 12 has replaced the first.
    assert {name for name in after if torch.equal(before[name], after[name])} == {
        name for name in after if name.startswith("1/")
    }
    assert averaged_losses(run / "attempt-2")[12] is not None


@pytest.mark.parametrize(
    ("changes", "steps"),
    [
        ({"average": LAST}, [2, 4, 6]),
        ({"average": LAST, "optimizer_state": "fresh"}, [6]),
        ({"average": {"last": 2, "every": 2}}, [6]),
    ],
    ids=["kept", "fresh", "other settings"],
)
def test_fork_keeps_the_average_as_it_keeps_the_optimizer_s_state(
    tmp_path: Path, corpus: Path, changes: dict[str, Any], steps: list[int]
) -> None:
    completed(begin(tmp_path / "source", corpus, steps=5, average=LAST))
    source = layout.checkpoint_dir(tmp_path / "source" / "attempt-1", 5)
    note = LaunchNote(resume="pinned", resume_from=str(source))
    fork = begin(tmp_path / "fork", corpus, steps=6, note=note, **changes)
    anew = [one["message"] for one in recorded(fork, "notice") if one["phase"] == "average"]
    assert len(anew) == (changes["average"] != LAST)
    completed(fork)
    assert fork.average.describe(6)["steps"] == steps


@pytest.mark.parametrize(
    ("average", "steps", "message"),
    [
        ({"last": 1, "every": 5}, 20, "average.last is 1: the mean of one snapshot is that"),
        ({"last": 2, "ema": 0.9, "every": 5}, 20, "and both are given; give one"),
        ({"every": 5}, 20, "and neither is given; give one"),
        ({"ema": 1.0, "every": 5}, 20, "less than 1"),
        ({"ema": 0.0, "every": 5}, 20, "greater than 0"),
        ({"last": 2, "every": 0}, 20, "greater than or equal to 1"),
        (
            {"last": 2, "every": 11},
            20,
            "average.every is 11, but the run has 20 steps, so fewer than two",
        ),
    ],
)
def test_what_is_no_average_is_refused_with_the_reason(
    average: dict[str, Any], steps: int, message: str
) -> None:
    with pytest.raises(ValidationError, match=message):
        TrainConfig.model_validate(train_values(Path("x"), steps=steps, average=average))


def test_too_little_host_memory_is_refused_before_the_first_step(
    tmp_path: Path, corpus: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(staging, "free_memory", lambda: 1000)
    with pytest.raises(BadConfig, match=r"train.average: .* lower average.last, or leave average"):
        begin(tmp_path / "run", corpus, average=LAST)
