"""Trainings for tests: a run directory, the process, and its files."""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import yaml

from lehr_testing.forking import Forked, fork
from lehr_testing.specs import train as train_values
from lehr_testing.waiting import until
from lehr_trainer.checkpointing.checkpoint import read_manifest, read_tensors
from lehr_trainer.contract import layout

TIMEOUT_S = 240.0
MANY = 100_000
"""More steps than any test waits for."""
UNSAVED: dict[str, Any] = {
    "steps": MANY,
    "checkpoint": {"every": 0},
    "validation": {"tokens": 512, "share": 0.1, "every": 0},
}
"""Settings of a run that saves only when ordered to."""


def make_run(folder: Path, corpus: Path, *, steps: int = 12, **changes: Any) -> Path:
    """A run directory with the config of a very small model."""
    folder.mkdir(parents=True, exist_ok=True)
    config = train_values(corpus, steps=steps, **changes)
    (folder / layout.CONFIG).write_text(yaml.safe_dump(config))
    return folder


def command(path: Path, ranks: int) -> list[str]:
    """Return the command line as users type it."""
    if ranks == 1:
        return [sys.executable, "-m", "lehr_trainer", str(path)]
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    torchrun = [sys.executable, "-m", "torch.distributed.run", "--nproc-per-node", str(ranks)]
    return [*torchrun, "--master-port", str(port), "-m", "lehr_trainer", str(path)]


Trainer = Forked | subprocess.Popen[str]


@contextmanager
def training(
    path: Path,
    *,
    ranks: int = 1,
    data: Path | None = None,
    code: str = "",
    command_line: bool = False,
    **environment: str,
) -> Iterator[Trainer]:
    """Run the trainer on a run or its attempt; kill its remaining processes at the end.

    Prepared data lies beside the run if ``data`` is not given. Each rank executes ``code`` first, see
    ``sabotage``. With ``command_line``, ``python -m lehr_trainer`` or torchrun starts it, which
    takes seconds; else processes are forked.
    """
    env = {
        **os.environ,
        "OMP_NUM_THREADS": "1",
        "LEHR_DATA": str(data or path.parent / "data"),
        **environment,
    }
    start = _typed if command_line else _forked
    with start(path, ranks, code, env) as process:
        yield process


@contextmanager
def _forked(path: Path, ranks: int, code: str, env: dict[str, str]) -> Iterator[Forked]:
    process = fork("lehr_trainer", [str(path)], environment=env, ranks=ranks, code=code)
    try:
        yield process
    finally:
        process.end_session()
        process.close()


@contextmanager
def _typed(
    path: Path, ranks: int, code: str, env: dict[str, str]
) -> Iterator[subprocess.Popen[str]]:
    with tempfile.TemporaryDirectory() as site:
        Path(site, "sitecustomize.py").write_text(code)
        # Its path is in the environment of each process, and of no other.
        env["PYTHONPATH"] = site
        process = subprocess.Popen(
            command(path, ranks),
            env=env,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            start_new_session=True,
        )
        try:
            yield process
        finally:
            kill_marked(f"PYTHONPATH={site}")
            process.communicate(timeout=30)


def kill_marked(setting: str) -> None:
    """Kill every process that was started with ``setting`` in its environment, whichever process started it.

    torchrun gives each rank a session of its own, and may be gone when its ranks are not.
    """
    for process in Path("/proc").glob("[0-9]*"):
        # Skip processes of other users and those that have ended meanwhile.
        with suppress(OSError):
            if setting.encode() in (process / "environ").read_bytes().split(b"\0"):
                os.kill(int(process.name), signal.SIGKILL)


def sabotage(
    *, at_step: int, act: str, ranks: tuple[int, ...] = (0,), after: Path | None = None
) -> str:
    """Return code that makes some ranks ``act`` during step ``at_step``.

    The steps are counted from the process's start, with any optimizer. ``act`` is Python that
    sees ``os``. It waits for the checkpoint ``after``, which is written beside the steps.
    """
    wait_for = None if after is None else str(after / layout.MANIFEST)
    return (
        "import os, time\n"
        f"if int(os.environ.get('RANK', '0')) in {ranks!r}:\n"
        "    from torch.optim.optimizer import register_optimizer_step_pre_hook\n"
        "    taken = []\n"
        "    def count(optimizer, *_):\n"
        # The rehearsal before the first step makes the optimizer's state by one at a rate of 0.
        "        if any(float(group['lr']) for group in optimizer.param_groups):\n"
        "            taken.append(1)\n"
        f"        if len(taken) == {at_step}:\n"
        f"            while {wait_for!r} and not os.path.exists({wait_for!r}):\n"
        "                time.sleep(0.01)\n"
        f"            {act}\n"
        "    register_optimizer_step_pre_hook(count)\n"
    )


def sabotage_save(checkpoint: Path, *, call: int, act: str) -> str:
    """Return code that makes a rank ``act`` at an fsync of ``checkpoint``.

    ``act`` is Python that sees ``os``.
    """
    return (
        "import os\n"
        "whole, calls = os.fsync, []\n"
        "def fsync(handle):\n"
        f"    if os.path.isdir({str(checkpoint) + '.tmp'!r}):\n"
        "        calls.append(1)\n"
        f"        if len(calls) == {call}:\n"
        f"            {act}\n"
        "    return whole(handle)\n"
        "os.fsync = fsync\n"
    )


EAGER = 'import torch\ntorch.compiler.set_stance("force_eager")\n'
"""Code for ``training``: what would be compiled runs eagerly, which is quick on a CPU."""
KILL = "os.kill(os.getpid(), 9)"
TERMINATE = "os.kill(os.getpid(), 15)"
NO_SPACE = "raise OSError(28, 'No space left on device')"


def rank_pids(process: Trainer) -> list[int]:
    """The processes that its launcher started."""
    children = Path(f"/proc/{process.pid}/task/{process.pid}/children")
    return [int(pid) for pid in children.read_text().split()] if children.exists() else []


def finish(process: Trainer, *, within_s: float = TIMEOUT_S) -> tuple[int, str]:
    """Return its exit code and its terminal output."""
    output, _ = process.communicate(timeout=within_s)
    return process.returncode, output


def train_to_end(path: Path, **options: Any) -> str:
    """Train, with the options of ``training``; fails unless it exits 0."""
    with training(path, **options) as process:
        code, output = finish(process)
    assert code == 0, output
    return output


def fails(path: Path, data: Path) -> str:
    """Train until the process fails, and return its output, which has no traceback."""
    with training(path, data=data) as process:
        code, output = finish(process)
    assert code == 1
    assert "Traceback" not in output
    return output


def records(attempt: Path, kind: str | None = None) -> list[dict[str, Any]]:
    """Return the complete records of an attempt so far."""
    path = attempt / layout.EVENTS
    if not path.exists():
        return []
    lines = path.read_bytes().split(b"\n")[:-1]
    every = [json.loads(line) for line in lines]
    return [record for record in every if kind in {None, record["kind"]}]


def last_step(attempt: Path) -> int:
    return max((record["step"] for record in records(attempt, "metrics")), default=0)


def reached(attempt: Path, step: int) -> None:
    """Wait until ``step`` was logged."""
    until(lambda: last_step(attempt) >= step, within_s=TIMEOUT_S, what=f"step {step}", every_s=0.02)


def series(name: str, *attempts: Path) -> dict[int, float]:
    """A metric by step; a later attempt's points replace an earlier one's."""
    found: dict[int, float] = {}
    for attempt in attempts:
        for record in records(attempt, "metrics"):
            found[record["step"]] = record["values"][name]
    return found


def losses(*attempts: Path) -> dict[int, float]:
    return series("train/loss", *attempts)


def final_state(attempt: Path) -> dict[str, Any]:
    """Every tensor of its newest checkpoint, weights and optimizer."""
    newest = layout.checkpoints(attempt)[-1]
    manifest = read_manifest(newest)
    kinds = {kind: read_tensors(newest, manifest, kind) for kind in ("model", "optimizer")}
    return {f"{kind}/{name}": t for kind, named in kinds.items() for name, t in named.items()}


def digests(attempt: Path) -> dict[str, str]:
    """SHA-256 of each file of tensors in its newest checkpoint."""
    files = read_manifest(layout.checkpoints(attempt)[-1]).files
    return {name: entry.sha256 for name, entry in files.items() if name.endswith(".safetensors")}


def different_tensors(one: Path, other: Path) -> list[str]:
    """Names of tensors that are not bitwise equal in the newest checkpoints of two attempts."""
    first, second = final_state(one), final_state(other)
    assert first.keys() == second.keys()
    return [
        name
        for name, tensor in first.items()
        if tensor.numpy().tobytes() != second[name].numpy().tobytes()
    ]
