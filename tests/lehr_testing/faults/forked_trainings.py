"""Launch a run repeatedly, killed each time while it saves; print one JSON line per kill.

    python forked_trainings.py RUN TIMES

Each attempt is a fork of this process, so torch is imported once. It is killed at a call that
changes the disk, a later one each time, while it writes its second checkpoint; saves are in turn
asynchronous and not.
"""

from __future__ import annotations

import json
import os
import signal
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import yaml

from lehr_trainer import __main__ as trainer
from lehr_trainer.checkpointing.checkpoint import verify
from lehr_trainer.contract import layout
from lehr_trainer.runtime import launch

CALLS = 16
"""That one save makes: 5 files, the folder, the rename, records; some come after it is whole."""


def main() -> None:
    run, times = Path(sys.argv[1]), int(sys.argv[2])
    for number in range(times):
        choose_saves(run, asynchronous=number % 2 == 0)
        before = newest(run)
        child = os.fork()
        if not child:
            train_and_die(run, target=before + 2, call=(number // 2) % CALLS)
        _, status = os.waitpid(child, 0)
        step = newest(run)
        print(
            json.dumps(
                {
                    "signal": status & 0x7F,
                    "whole": step >= before + 2,
                    "newest": step,
                    "asynchronous": number % 2 == 0,
                }
            ),
            flush=True,
        )


def choose_saves(run: Path, *, asynchronous: bool) -> None:
    path = run / layout.CONFIG
    config = yaml.safe_load(path.read_text())
    config["checkpoint"]["asynchronous"] = asynchronous
    path.write_text(yaml.safe_dump(config))


def newest(run: Path) -> int:
    """The step of the newest checkpoint, each of which has to verify."""
    steps = [0]
    for attempt in layout.attempts(run):
        for path in layout.checkpoints(attempt):
            verify(path)
            steps.append(layout.checkpoint_step(path) or 0)
    return max(steps)


def train_and_die(run: Path, *, target: int, call: int) -> None:
    """Train as ``python -m lehr_trainer`` does; never returns."""
    try:
        place = launch.find_place(run, make_attempt=True)
        assert place is not None
        saving = layout.checkpoint_dir(place.attempt_dir, target)
        left = iter(range(call))

        def counting(act: Callable[..., Any]) -> Callable[..., Any]:
            def instead(*args: Any, **kwargs: Any) -> Any:
                begun = saving.exists() or saving.with_name(saving.name + ".tmp").exists()
                if begun and next(left, None) is None:
                    os.kill(os.getpid(), signal.SIGKILL)
                return act(*args, **kwargs)

            return instead

        os.fsync = counting(os.fsync)
        for name in ("open", "rename", "unlink"):
            setattr(Path, name, counting(getattr(Path, name)))
        os._exit(trainer.RankProcess(0, run, place).run())
    finally:
        os._exit(99)


if __name__ == "__main__":
    main()
