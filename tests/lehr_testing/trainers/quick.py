"""A fake cluster and trainer: queued runs "train" at once, with plausible losses."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import Any

from lehr.base import home as homes
from lehr.control.lifecycle import RunState
from lehr_testing import seeding

_TRAINED = 200
"""The most steps recorded for a run; quick tests need no more."""


@contextmanager
def quick_trainer(store: Any) -> Iterator[None]:
    """Train and complete every run that is queued in ``store``, until the block ends."""
    stop = threading.Event()
    failures: list[BaseException] = []

    def serve() -> None:
        while not stop.wait(0.05):
            for run in store.runs.by_state([RunState.QUEUED]):
                try:
                    _settle(store, run)
                except BaseException as error:
                    failures.append(error)
                    return

    thread = threading.Thread(target=serve, daemon=True)
    thread.start()
    try:
        yield
    finally:
        stop.set()
        thread.join(60)
    assert not failures, failures


def _settle(store: Any, run: Any) -> None:
    if run.desired == "run":
        # One that is cancelled just now is seen to at the next look.
        with suppress(seeding.NotWaiting):
            _train(store, run)
        return
    store.transitions.apply(
        run.id,
        old=RunState.QUEUED,
        new=RunState.CANCELLED,
        attempt=run.attempt,
        cause="user",
        actor="user",
    )


def _train(store: Any, run: Any) -> None:
    train = run.spec["train"]
    steps = train["steps"]
    assert steps <= _TRAINED
    first = int(run.resume_from.rpartition("-")[2]) if run.resume_from else 0
    attempt = seeding.start(store, run)
    attempt.log(f"{run.name} trains\n")
    every, save = train["validation"]["every"] or steps, train["checkpoint"]["every"] or steps
    for start in range(first, steps, min(every, save)):
        end = min(start + min(every, save), steps)
        attempt.train(range(start + 1, end + 1))
        if end % every == 0 or end == steps:
            loss = seeding.loss_at(end, train["optimizer"]["lr"], seed=run.name, steps=steps)
            attempt.evaluate(end, loss)
        if end % save == 0 or end == steps:
            # A fork checks that they exist; their content is not read.
            name = f"attempt-{attempt.number}/checkpoints/step-{end:08d}"
            folder = homes.runs_dir(store.home) / run.id / name
            folder.mkdir(parents=True)
            (folder / "manifest.json").write_text("{}")
            attempt.checkpoint(end)
    attempt.sample(steps, "said")
    attempt.end(RunState.COMPLETED, steps)
