"""Runs that fail, as processes: the reason is reported, and nothing hangs."""

from __future__ import annotations

import os
import signal
import subprocess
from pathlib import Path

import pytest

from lehr_testing.trainer import MANY, fails, finish, make_run, reached, records, sabotage, training
from lehr_trainer.contract import layout


def test_nan_loss_stops_the_run_and_names_the_last_good_checkpoint(
    tmp_path: Path, corpus: Path, data: Path
) -> None:
    # Without clipping, and with steps this large, numbers overflow within a few steps.
    run = make_run(
        tmp_path / "run",
        corpus,
        steps=MANY,
        optimizer={"lr": 1e17, "weight_decay": 0.0},
        schedule={"name": "cosine", "warmup_steps": MANY},
        checkpoint={"every": 1},
        grad_clip=0,
    )
    with training(run, data=data) as process:
        code, output = finish(process)
    assert code == 1
    attempt = run / "attempt-1"
    finished = records(attempt, "finished")[0]
    assert (finished["outcome"], finished["cause"]) == ("failed", "nan_loss")
    good = layout.checkpoints(attempt)[-1].name
    assert f"the last good checkpoint is attempt-1/checkpoints/{good}" in finished["message"]
    assert records(attempt, "stopping")[0]["reason"] == "nan"
    assert records(attempt, "metrics")[-1]["values"]["train/loss"] in {"NaN", "Infinity"} or (
        records(attempt, "metrics")[-1]["values"]["train/grad_norm"] in {"NaN", "Infinity"}
    )
    assert "optimizer.lr" in output


def test_a_full_disk_fails_the_run_with_that_reason(
    tmp_path: Path, corpus: Path, data: Path
) -> None:
    if os.geteuid() != 0:
        pytest.skip("mounting a small disk needs root")
    disk = tmp_path / "disk"
    disk.mkdir()
    if subprocess.run(
        ["mount", "-t", "tmpfs", "-o", "size=900k", "none", str(disk)], check=False
    ).returncode:
        pytest.skip("this machine does not let root mount a tmpfs")
    try:
        # One checkpoint of this model is about 0.4 MB: the third of those that are kept is too much.
        run = make_run(disk / "run", corpus, steps=40, checkpoint={"every": 3, "keep_last": 9})
        output = fails(run, data)
        attempt = run / "attempt-1"
        finished = records(attempt, "finished")[0]
        assert (finished["outcome"], finished["cause"]) == ("failed", "disk_full")
        assert "no space left" in output
        kept = layout.checkpoints(attempt)
        assert kept
        assert not list((attempt / layout.CHECKPOINTS).glob("*.tmp"))
        subprocess.run(["mount", "-o", "remount,size=4m", str(disk)], check=True)
        with training(run, data=data) as process:
            reached(run / "attempt-2", int(finished["step"]) + 1)
            process.send_signal(signal.SIGTERM)
            finish(process)
        assert records(run / "attempt-2", "resumed")[0]["checkpoint"].endswith(kept[-1].name)
    finally:
        subprocess.run(["umount", str(disk)], check=True)


def test_failure_of_one_rank_ends_the_others_and_is_the_reported_cause(
    tmp_path: Path, corpus: Path, data: Path
) -> None:
    run = make_run(tmp_path / "run", corpus, steps=MANY)
    act = "raise MemoryError('no memory on rank 1')"
    harm = sabotage(at_step=4, act=act, ranks=(1,))
    with training(run, ranks=2, data=data, code=harm) as process:
        code, _ = finish(process)
    assert code == 1
    finished = records(run / "attempt-1", "finished")[0]
    assert (finished["outcome"], finished["cause"]) == ("failed", "out_of_memory")
    assert "rank 1" in finished["message"]
