"""Assembly of a training: records, output, the chosen checkpoint, arguments of each part."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch

from lehr_testing.assembled import begin, recorded
from lehr_trainer.errors import BadConfig
from lehr_trainer.planning.counts import flops_per_token, parameter_counts
from lehr_trainer.runtime import environment
from lehr_trainer.runtime.distributed import Ranks
from lehr_trainer.train import Training

CPU = torch.device("cpu")
QUIET = {"validation": {"tokens": 512, "share": 0.1, "every": 0}, "checkpoint": {"every": 0}}


def take_steps(training: Training, count: int = 1) -> dict[int, dict[str, float]]:
    """Take so many steps and return their metrics."""
    with training.loader:
        training.wrapped.train()
        training.metrics_logger.start_at(training.progress.step, training.progress.tokens)
        for _ in range(count):
            training.take_step()
        training.metrics_logger.flush()
    return {record["step"]: record["values"] for record in recorded(training, "metrics")}


# --- records ---------------------------------------------------------------------------------


def test_the_started_record_has_each_of_its_fields(tmp_path: Path, corpus: Path) -> None:
    training = begin(tmp_path / "run", corpus, steps=7, **QUIET)
    training.loader.close()
    (started,) = recorded(training, "started")
    config, data = training.config, training.stage.data
    assert started["attempt"] == 1
    assert started["world_size"] == 1
    assert started["device"] == "cpu"
    assert started["parameters"] == parameter_counts(config.model).total
    assert (started["tokens_per_step"], started["total_steps"]) == (256, 7)
    assert started["data_digest"] == data.digest
    assert started["validation_digest"] == data.validation_digest
    assert started["held_out"] == data.held_out.describe(512)
    assert started["versions"] == environment.versions()
    assert started["host"].keys() == environment.host(CPU).keys()
    assert list(started["startup_s"]) == ["model", "data", "resume", "first_batch", "compile"]
    assert recorded(training, "resumed") == recorded(training, "warning") == []


# --- going on --------------------------------------------------------------------------------


def saved_at(run: Path, corpus: Path, *steps: int) -> list[Path]:
    """Checkpoints of an attempt at these steps."""
    training = begin(run, corpus, **QUIET)
    with training.loader:
        training.wrapped.train()
        for step in steps:
            while training.progress.step < step:
                training.take_step()
            training.save("order", None, final=True)
    training.checkpointer.end()
    return [run / record["path"] for record in recorded(training, "checkpoint")]


def damage(checkpoint: Path) -> None:
    weights = checkpoint / "model.safetensors"
    content = bytearray(weights.read_bytes())
    content[-1] ^= 1
    weights.write_bytes(content)


def test_a_damaged_newest_checkpoint_is_named_and_the_one_before_taken(
    tmp_path: Path, corpus: Path
) -> None:
    run = tmp_path / "run"
    older, newest = saved_at(run, corpus, 1, 2)
    damage(newest)
    printed: list[str] = []
    training = begin(run, corpus, log=printed.append, **QUIET)
    training.loader.close()
    assert (training.progress.step, training.progress.tokens) == (1, 256)
    (resumed,) = recorded(training, "resumed")
    assert (resumed["step"], resumed["checkpoint"]) == (1, str(older.relative_to(run)))
    (skipped,) = resumed["skipped"]
    assert str(newest.relative_to(run)) in skipped
    assert "damaged" in skipped
    assert printed[-2:] == [
        f"resumed at step 1 from {older.relative_to(run)}",
        f"warning: skipped a newer checkpoint: {skipped}",
    ]
    kinds = [json.loads(line)["kind"] for line in training.events.path.read_text().splitlines()]  # type: ignore[union-attr]
    assert kinds[-2:] == ["started", "resumed"]


def test_run_without_a_valid_checkpoint_starts_over_with_a_warning(
    tmp_path: Path, corpus: Path
) -> None:
    run = tmp_path / "run"
    (only,) = saved_at(run, corpus, 1)
    damage(only)
    printed: list[str] = []
    training = begin(run, corpus, log=printed.append, **QUIET)
    training.loader.close()
    assert training.progress.step == 0
    assert recorded(training, "resumed") == []
    (warning,) = recorded(training, "warning")
    assert (warning["code"], warning["step"]) == ("no_valid_checkpoint", 0)
    assert warning["message"].startswith("no checkpoint verifies, so training starts from step 0: ")
    assert str(only.relative_to(run)) in warning["message"]
    assert f"warning: {warning['message']}" in printed


def test_each_rank_restores_its_own_generators(tmp_path: Path, corpus: Path) -> None:
    run = tmp_path / "run"
    training = begin(run, corpus, **QUIET)
    with training.loader:
        training.wrapped.train()
        training.take_step()
        torch.rand(100)
        wanted = torch.get_rng_state()
        training.save("order", None, final=True)
    training.checkpointer.end()
    again = begin(run, corpus, **QUIET)
    again.loader.close()
    assert torch.equal(torch.get_rng_state(), wanted)


# --- ranks -----------------------------------------------------------------------------------


def test_each_rank_takes_its_share_of_a_step_and_of_the_held_out_set(
    tmp_path: Path, corpus: Path
) -> None:
    """Ranks without a process group: nothing is exchanged here."""
    whole = begin(tmp_path / "whole", corpus, **QUIET)
    halves = [
        begin(tmp_path / f"half-{rank}", corpus, ranks=Ranks(rank, 2, CPU), **QUIET)
        for rank in (0, 1)
    ]
    batches = [training.loader.batch(3)[0] for training in (whole, *halves)]
    held_out = [
        torch.cat([inputs for inputs, _ in training.stage.scored["val"].batches()])
        for training in (whole, *halves)
    ]
    for training in (whole, *halves):
        training.loader.close()
    assert torch.equal(torch.cat(batches[1:]), batches[0])
    assert [len(inputs) for inputs in held_out] == [8, 4, 4]
    rows = [sorted(map(tuple, inputs.tolist())) for inputs in held_out]
    assert sorted(rows[1] + rows[2]) == rows[0]
    assert [recorded(one, "started")[0]["world_size"] for one in halves] == [2, 2]
    assert torch.initial_seed() == 1, "rank 1 of seed 0 draws other numbers than rank 0"


def test_ranks_that_cannot_share_a_step_are_refused(tmp_path: Path, corpus: Path) -> None:
    with pytest.raises(BadConfig, match="4 sequences a step cannot be shared by 3 ranks"):
        begin(tmp_path / "run", corpus, ranks=Ranks(0, 3, CPU), **QUIET)
    accumulating = {"sequences": 8, "sequence_length": 64, "micro_batch": 4}
    static = {"static_graph": True}
    two = begin(
        tmp_path / "two", corpus, ranks=Ranks(0, 2, CPU), batch=accumulating, parallel=static,
        **QUIET,
    )  # fmt: skip
    two.loader.close()
    with pytest.raises(BadConfig, match="cannot be combined with gradient accumulation"):
        begin(tmp_path / "one", corpus, batch=accumulating, parallel=static, **QUIET)


@pytest.mark.parametrize(
    ("batch", "validation", "ranks", "size"),
    [
        ({}, {}, 1, 4),
        ({}, {}, 2, 2),
        ({"micro_batch": 1}, {}, 1, 1),
        ({"micro_batch": 1}, {"micro_batch": 2}, 1, 2),
    ],
    ids=["a step", "a rank's share", "the micro-batch of training", "its own"],
)
def test_the_held_out_set_is_scored_in_micro_batches(
    tmp_path: Path,
    corpus: Path,
    batch: dict[str, int],
    validation: dict[str, int],
    ranks: int,
    size: int,
) -> None:
    training = begin(
        tmp_path / "run",
        corpus,
        ranks=Ranks(0, ranks, CPU),
        batch={"sequences": 4, "sequence_length": 64, **batch},
        validation={**QUIET["validation"], **validation},
        checkpoint=QUIET["checkpoint"],
    )
    training.loader.close()
    shapes = {tuple(inputs.shape) for inputs, _ in training.stage.scored["val"].batches()}
    assert shapes == {(size, 64)}


# --- what the parts are given ------------------------------------------------------------------


@pytest.mark.parametrize("ranks", [1, 2])
def test_mfu_counts_each_ranks_peak_and_the_length_of_the_step(
    tmp_path: Path, corpus: Path, monkeypatch: pytest.MonkeyPatch, ranks: int
) -> None:
    asked: list[tuple[object, ...]] = []

    def peak(*args: object) -> float:
        asked.append(args)
        return 1e9

    monkeypatch.setattr("lehr_trainer.assemble.peak_flops", peak)
    batch = {
        "sequences": 4,
        "sequence_length": 64,
        "stages": [{"after": 0.5, "sequence_length": 128}],
    }
    training = begin(
        tmp_path / "run", corpus, steps=2, ranks=Ranks(0, ranks, CPU), batch=batch, **QUIET
    )
    values = take_steps(training, 2)
    assert asked == [("cpu", training.precision.arithmetic)]
    for step, length in ((1, 64), (2, 128)):
        flops = flops_per_token(training.config.model, length)
        want = values[step]["tokens_per_s"] * flops / (1e9 * ranks)
        assert values[step]["mfu"] == pytest.approx(want)


def test_fp16_uses_the_configured_loss_scale_and_survives_an_overflow(
    tmp_path: Path, corpus: Path
) -> None:
    fp16 = {"compute": "fp16", "loss_scale": {"initial": 2.0**40, "growth_interval": 100}}
    training = begin(tmp_path / "run", corpus, steps=2, precision=fp16, **QUIET)
    values = take_steps(training, 2)
    assert [values[step]["train/loss_scale"] for step in (1, 2)] == [2.0**39, 2.0**38]
    assert values[2]["train/skipped_steps"] == 2
    fp32 = begin(tmp_path / "fp32", corpus, precision={**fp16, "compute": "fp32"}, **QUIET)
    assert "train/loss_scale" not in take_steps(fp32)[1]


def test_order_to_save_is_applied_once(tmp_path: Path, corpus: Path) -> None:
    training = begin(tmp_path / "run", corpus, steps=3, **QUIET)
    assert training.events.path is not None
    training.events.path.with_name("orders.json").write_text(json.dumps({"checkpoint_seq": 1}))
    with training.loader:
        training.run()
    saved = [(one["step"], one["reason"]) for one in recorded(training, "checkpoint")]
    assert saved == [(1, "order"), (3, "last")]
