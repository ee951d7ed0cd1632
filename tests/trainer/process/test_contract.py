"""The contract that the platform relies on, for the real trainer and the fake one."""

from __future__ import annotations

import fcntl
import json
import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path

import pytest

from lehr_testing.paths import TESTING
from lehr_testing.trainer import Trainer, finish, make_run, reached, records, training
from lehr_trainer.contract import layout
from lehr_trainer.contract.records import record_adapter

FAKE = TESTING / "trainers" / "fake.py"
MANY = 100_000
"""More steps than any test waits for."""

Launch = Callable[..., AbstractContextManager[Trainer]]


@pytest.fixture
def attempt(tmp_path: Path, corpus: Path) -> Path:
    """Make an attempt's folder as the platform does."""
    run = make_run(
        tmp_path / "run",
        corpus,
        steps=MANY,
        checkpoint={"every": 0},
        validation={"tokens": 512, "share": 0.1, "every": 0},
    )
    attempt = layout.attempt_dir(run, 1)
    attempt.mkdir()
    (attempt / layout.LAUNCH).write_text(json.dumps({"run_id": "r", "attempt": 1}))
    return attempt


@contextmanager
def fake_training(attempt: Path, **environment: str) -> Iterator[subprocess.Popen[str]]:
    process = subprocess.Popen(
        [sys.executable, "-P", str(FAKE), str(attempt)],
        env={
            **os.environ,
            "CUDA_VISIBLE_DEVICES": "0",
            "FAKE_STEPS": str(MANY),
            "FAKE_STEP_S": "0.01",
            "FAKE_CHECKPOINT_EVERY": "0",
            **environment,
        },
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )
    try:
        yield process
    finally:
        process.kill()
        process.communicate()


@pytest.fixture(params=["real", "fake"])
def launch(request: pytest.FixtureRequest, data: Path) -> Launch:
    if request.param == "fake":
        return fake_training
    return lambda attempt, **environment: training(attempt, data=data, **environment)


def held(path: Path) -> bool:
    with path.open() as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            return True
    return False


def test_trainer_holds_its_gpu_locks_until_it_ends(
    launch: Launch, attempt: Path, tmp_path: Path
) -> None:
    locks = [tmp_path / "gpu-0.lock", tmp_path / "gpu-1.lock"]
    with launch(attempt, LEHR_GPU_LOCKS=os.pathsep.join(map(str, locks))) as process:
        reached(attempt, 1)
        for path in locks:
            assert held(path)
            with path.open() as shim:
                # Together with its shim and its other ranks.
                fcntl.flock(shim, fcntl.LOCK_SH | fcntl.LOCK_NB)
        process.kill()
        process.wait(30)
        assert not any(map(held, locks))


def test_trainer_does_not_start_on_a_locked_gpu(
    launch: Launch, attempt: Path, tmp_path: Path
) -> None:
    path = tmp_path / "gpu-0.lock"
    with path.open("w") as other:
        fcntl.flock(other, fcntl.LOCK_EX)
        with launch(attempt, LEHR_GPU_LOCKS=str(path)) as process:
            code, output = finish(process, within_s=60)
    assert code == 1
    assert "is locked by another process" in output
    assert records(attempt) == []


def test_sigterm_saves_and_ends_the_trainer(launch: Launch, attempt: Path) -> None:
    with launch(attempt) as process:
        reached(attempt, 1)
        process.send_signal(signal.SIGTERM)
        code, output = finish(process)
    assert code == 0, output
    check_end(attempt, "signal", ["stop"])


def check_end(attempt: Path, reason: str, saves: list[str]) -> None:
    story = records(attempt)
    for record in story:
        record_adapter.validate_python(record)
    kinds = [record["kind"] for record in story if record["kind"] != "notice"]
    assert kinds[0] == "started"
    assert kinds[-1] == "finished"
    assert story[-1]["outcome"] == "stopped"
    assert [record["reason"] for record in story if record["kind"] == "stopping"] == [reason]
    assert [record["reason"] for record in story if record["kind"] == "checkpoint"] == saves
    steps = [record["step"] for record in story if record["kind"] == "metrics"]
    assert steps == list(range(1, len(steps) + 1))
    if saves:
        (folder,) = layout.checkpoints(attempt)
        assert layout.checkpoint_step(folder) == story[-1]["step"] == steps[-1]
