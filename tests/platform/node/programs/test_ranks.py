"""A program of two ranks: which of them records, and whose failure is the run's."""

from __future__ import annotations

import signal
import subprocess
from pathlib import Path
from typing import Any

import pytest

from lehr_testing.program_attempts import Attempts
from lehr_testing.waiting import until
from lehr_trainer.contract import layout
from lehr_trainer.contract.orders import Orders


@pytest.fixture
def attempts(tmp_path: Path) -> Attempts:
    return Attempts(tmp_path)


def both_ranks(attempts: Attempts, text: str, **trainer: Any) -> list[subprocess.Popen[bytes]]:
    attempts.write(text)
    trainer["launcher"] = "torchrun"
    first = attempts.start(**trainer)
    return [first, attempts.start(beside={"RANK": "1"}, **trainer)]


def test_only_rank_0_records_and_every_rank_is_asked_to_stop(attempts):
    ranks = both_ranks(
        attempts,
        """
        import os, pathlib, time, lehr_log, wandb
        rank = os.environ["RANK"]
        lehr_log.should_stop()
        print("mode", os.environ["WANDB_MODE"], lehr_log.config)
        wandb.init()
        for step in (1, 2, 3):
            lehr_log.log({"loss": step}, step=step)
            wandb.log({"other": step}, step=step)
            pathlib.Path(f"saved-{rank}").write_text("x")
            lehr_log.checkpoint(f"saved-{rank}", step=step)
        pathlib.Path(f"ready-{rank}").touch()
        while not lehr_log.should_stop():
            time.sleep(0.05)
        time.sleep(0.5)
        print("saved after the stop")
        """,
        args={"lr": 0.1},
    )
    work = attempts.attempt / "work"
    until(
        lambda: (work / "ready-0").exists() and (work / "ready-1").exists(),
        within_s=60,
        what="both ranks",
    )
    orders = Orders(desired="pause").model_dump_json()
    (attempts.attempt / layout.ORDERS).write_text(orders)
    assert [process.wait(60) for process in ranks] == [0, 0]
    [finished] = attempts.records("finished")
    assert (finished.outcome, finished.step, finished.cause) == ("stopped", 3, "pause")
    assert [step for step, _ in attempts.series("loss")] == [1, 2, 3]
    steps = [saved.step for saved in attempts.records("checkpoint")]
    assert steps == sorted(set(steps))
    assert steps[-1] == 3
    assert len(attempts.records("started")) == len(attempts.records("finished")) == 1
    logs = [layout.rank_log(attempts.attempt, rank).read_text() for rank in (0, 1)]
    assert all("saved after the stop" in text and "{'lr': 0.1}" in text for text in logs)
    assert "mode offline" in logs[0]
    assert "mode disabled" in logs[1]
    assert not (attempts.attempt / "log-1.jsonl").exists()


def test_rank_that_fails_is_the_failure_of_the_run_although_the_others_are_stopped(attempts):
    ranks = both_ranks(
        attempts,
        """
        import os, sys, time, lehr_log
        lehr_log.should_stop()
        lehr_log.log({"loss": 1.0}, step=1)
        if os.environ["RANK"] == "1":
            sys.exit(7)
        while not lehr_log.should_stop():
            time.sleep(0.05)
        """,
    )
    assert ranks[1].wait(60) == 1
    until(lambda: attempts.series("loss"), within_s=60, what="the first step of rank 0")
    # As torchrun does when one of its ranks has failed.
    ranks[0].send_signal(signal.SIGTERM)
    assert ranks[0].wait(60) == 1
    [finished] = attempts.records("finished")
    assert (finished.outcome, finished.cause) == ("failed", "program_failed")
    assert finished.message.startswith("rank 1: train.py exited with code 7")
    assert finished.message.endswith("lehr logs r --rank 1")
