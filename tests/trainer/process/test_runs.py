"""``python -m lehr_trainer`` and ``torchrun -m lehr_trainer``, alone, as processes."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path
from typing import Any

import pytest

from lehr_testing.trainer import (
    KILL,
    TERMINATE,
    UNSAVED,
    different_tensors,
    digests,
    finish,
    losses,
    make_run,
    records,
    sabotage,
    series,
    train_to_end,
    training,
)
from lehr_trainer.contract import layout
from lehr_trainer.contract.records import record_adapter


@pytest.fixture(scope="module")
def undisturbed(tmp_path_factory: pytest.TempPathFactory, corpus: Path, data: Path) -> Path:
    """The attempt that others are compared with: 12 steps, a checkpoint every 5."""
    run = make_run(tmp_path_factory.mktemp("undisturbed"), corpus)
    train_to_end(run, data=data)
    return run / "attempt-1"


# --- a run -----------------------------------------------------------------------------------


def test_a_run_writes_all_its_records(undisturbed: Path) -> None:
    story = records(undisturbed)
    for record in story:
        record_adapter.validate_python(record)
    kinds = [record["kind"] for record in story if record["kind"] != "notice"]
    assert kinds[0] == "started"
    assert kinds[-1] == "finished"
    started = records(undisturbed, "started")[0]
    assert started["total_steps"] == 12
    assert {"imports", "data", "model", "first_batch"} <= started["startup_s"].keys()
    metrics = records(undisturbed, "metrics")
    assert [record["step"] for record in metrics] == list(range(1, 13))
    assert {
        "train/loss",
        "train/lr",
        "train/grad_norm",
        "tokens_per_s",
        "step_time_s",
        "data_wait_s",
        "data/digest",
        "data/epoch",
        "memory/rss_bytes",
    } == metrics[0]["values"].keys()
    assert [record["tokens"] for record in metrics] == [256 * step for step in range(1, 13)]
    assert records(undisturbed, "finished")[0]["outcome"] == "completed"
    evaluations = records(undisturbed, "evaluation")
    assert [record["step"] for record in evaluations] == [10, 12]
    assert evaluations[-1]["values"]["val/loss"] < 6.0
    assert evaluations[0]["validation_digest"] == started["validation_digest"]
    assert losses(undisturbed)[12] < losses(undisturbed)[1]
    assert "completed at step 12" in layout.rank_log(undisturbed, 0).read_text()


def test_checkpoints_are_recorded_and_kept_by_the_policy(undisturbed: Path) -> None:
    saved = {record["step"]: record for record in records(undisturbed, "checkpoint")}
    assert {step: record["reason"] for step, record in saved.items()} == {
        5: "interval",
        10: "interval",
        12: "last",
    }
    assert [record["step"] for record in records(undisturbed, "checkpoint_removed")] == [5]
    on_disk = [layout.checkpoint_step(path) for path in layout.checkpoints(undisturbed)]
    assert on_disk == [10, 12]
    run_dir = undisturbed.parent
    for step in on_disk:
        folder = run_dir / saved[step]["path"]
        digest = subprocess.run(
            ["sha256sum", folder / "manifest.json"], capture_output=True, text=True, check=True
        )
        assert digest.stdout.split()[0] == saved[step]["digest"]


def same_data(one: Path, *other: Path) -> None:
    """Each step trained on the same sequences, and each on others than the steps before."""
    digests_ = series("data/digest", one)
    assert digests_ == series("data/digest", *other)
    assert len(set(digests_.values())) == len(digests_) == 12
    assert series("data/epoch", one) == series("data/epoch", *other)


def same_gradient_norms(one: Path, other: Path) -> None:
    """AdamW and clipping hide a wrong scale of the gradients; their norm shows it."""
    got, want = (series("train/grad_norm", attempt) for attempt in (one, other))
    assert got == pytest.approx(want, rel=1e-3)


def test_two_ranks_match_one_rank_with_the_whole_batch(
    undisturbed: Path, tmp_path: Path, corpus: Path, data: Path
) -> None:
    batch = {"sequences": 4, "sequence_length": 64, "micro_batch": 1}
    run = make_run(tmp_path / "two", corpus, batch=batch)
    train_to_end(run, ranks=2, data=data)
    attempt = run / "attempt-1"
    assert records(attempt, "started")[0]["world_size"] == 2
    same_data(attempt, undisturbed)
    assert losses(attempt) == pytest.approx(losses(undisturbed), abs=2e-5)
    same_gradient_norms(attempt, undisturbed)
    got, want = (records(a, "evaluation")[-1]["values"] for a in (attempt, undisturbed))
    assert got == pytest.approx(want, abs=2e-5)
    assert layout.rank_log(attempt, 1).exists()


UNEVEN = (
    "import lehr_trainer.data.loader as loader\n"
    "whole = loader.Loader._masked\n"
    "def masked(self, rows):\n"
    "    return whole(self, rows) | (rows[:, :1] % 2 == 0)\n"
    "loader.Loader._masked = masked\n"
)
"""Masks sequences by their first token: so batches of one sequence have many tokens or none."""


def test_masked_ranks_and_micro_batches_match_one_batch_and_resume_bitwise(
    tmp_path: Path, corpus: Path, data: Path
) -> None:
    lines = {"kind": "text", "paths": [str(corpus)], "document": "line"}
    changes: dict[str, Any] = {
        "data": {"corpus": lines, "tokenizer": "byte", "loss_mask": "document_starts"},
        "loss": {"z_loss": 1e-3},
        "steps": 6,
        "checkpoint": {"every": 2},
        "validation": {"tokens": 512, "share": 0.1, "every": 0},
    }
    attempts = {}
    for name, ranks, micro_batch in (("one", 1, None), ("two", 2, 1)):
        batch = {"sequences": 8, "sequence_length": 64, "micro_batch": micro_batch}
        run = make_run(tmp_path / name, corpus, batch=batch, **changes)
        train_to_end(run, ranks=ranks, data=data, code=UNEVEN)
        attempts[name] = run / "attempt-1"
    one, two = attempts.values()
    counted = series("train/loss_tokens", one)
    assert counted == series("train/loss_tokens", two)
    assert 0 < min(counted.values()) < max(counted.values()) < 8 * 64
    for figure in ("train/loss", "train/z_loss", "train/grad_norm"):
        assert series(figure, two) == pytest.approx(series(figure, one), rel=1e-4), figure

    killed = make_run(tmp_path / "killed", corpus, batch=batch, **changes)
    saved = layout.checkpoint_dir(killed / "attempt-1", 2)
    harm = sabotage(at_step=4, act=KILL, after=saved)
    with training(killed, ranks=2, data=data, code=UNEVEN + harm) as process:
        finish(process)
    train_to_end(killed, ranks=2, data=data, code=UNEVEN)
    assert series("train/loss", killed / "attempt-1", killed / "attempt-2") == series(
        "train/loss", two
    )
    assert different_tensors(killed / "attempt-2", two) == []


# --- killed, stopped, resumed ----------------------------------------------------------------


def killed(run: Path, data: Path, ranks: int) -> None:
    """Kill its first attempt in step 8, after the checkpoint of step 5."""
    saved = layout.checkpoint_dir(run / "attempt-1", 5)
    harm = sabotage(at_step=8, act=KILL, after=saved)
    torchrun = ranks > 1
    with training(run, ranks=ranks, data=data, code=harm, command_line=torchrun) as process:
        code, _ = finish(process)
    assert code != 0
    assert not records(run / "attempt-1", "finished")


@pytest.mark.parametrize("ranks", [1, 2])
def test_killed_and_resumed_run_ends_bitwise_like_an_undisturbed_one(
    undisturbed: Path, tmp_path: Path, corpus: Path, data: Path, ranks: int
) -> None:
    want = undisturbed
    if ranks == 2:
        other = make_run(tmp_path / "undisturbed-2", corpus)
        train_to_end(other, ranks=2, data=data)
        want = other / "attempt-1"
    run = make_run(tmp_path / "killed", corpus)
    killed(run, data, ranks)
    one_rank = tmp_path / "one-rank"
    shutil.copytree(run, one_rank)

    train_to_end(run, ranks=ranks, data=data)
    resumed = records(run / "attempt-2", "resumed")[0]
    assert resumed["step"] == 5
    assert resumed["checkpoint"] == "attempt-1/checkpoints/step-00000005"
    assert resumed["skipped"] == []
    assert [r["step"] for r in records(run / "attempt-2", "metrics")] == list(range(6, 13))
    assert losses(run / "attempt-1", run / "attempt-2") == losses(want)
    assert different_tensors(run / "attempt-2", want) == []
    assert digests(run / "attempt-2") == digests(want)
    if ranks == 2:
        # With another number of ranks it trains on the same sequences.
        train_to_end(one_rank, data=data)
        attempts = one_rank / "attempt-1", one_rank / "attempt-2"
        assert records(attempts[1], "resumed")[0]["step"] == 5
        assert losses(*attempts) == pytest.approx(losses(undisturbed), abs=5e-5)
        same_data(undisturbed, *attempts)


def test_sigterm_to_one_of_two_ranks_saves_and_ends_both(
    tmp_path: Path, corpus: Path, data: Path
) -> None:
    run = make_run(tmp_path / "run", corpus, **UNSAVED)
    harm = sabotage(at_step=3, act=TERMINATE, ranks=(1,))
    with training(run, ranks=2, data=data, code=harm) as process:
        code, output = finish(process)
    assert code == 0, output
    attempt = run / "attempt-1"
    assert records(attempt, "finished")[0]["outcome"] == "stopped"
    assert [r["reason"] for r in records(attempt, "checkpoint")] == ["stop"]
