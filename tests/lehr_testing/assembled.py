"""A training in this process, ready for its first step: for benches, and tests of single steps."""

from __future__ import annotations

import json
import os
import signal
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import yaml

from lehr_testing.specs import train as train_values
from lehr_trainer.assemble import assemble
from lehr_trainer.configs.train import TrainConfig
from lehr_trainer.contract import layout
from lehr_trainer.contract.orders import LaunchNote
from lehr_trainer.runtime import environment, launch
from lehr_trainer.runtime.distributed import Ranks
from lehr_trainer.runtime.environment import RunContext
from lehr_trainer.runtime.event_stream import EventStream
from lehr_trainer.step_control import StopSignal
from lehr_trainer.train import Training


def begin(
    run: Path,
    corpus: Path,
    *,
    ranks: Ranks | None = None,
    note: LaunchNote | None = None,
    log: Callable[[str], None] = lambda _line: None,
    **changes: Any,
) -> Training:
    """The next attempt of the run in the folder ``run``: the very small model, ``changes`` apart."""
    run.mkdir(exist_ok=True)
    return assembled(run, train_values(corpus, **changes), ranks=ranks, note=note, log=log)


def assembled(
    run: Path,
    values: dict[str, Any],
    *,
    ranks: Ranks | None = None,
    note: LaunchNote | None = None,
    log: Callable[[str], None] = lambda _line: None,
) -> Training:
    """The next attempt of the run in the folder ``run``, of the config ``values``.

    Prepared data lies in the folder, too. Signals stay what they were: nothing here obeys them.
    ``note`` is the platform's, if it launched the attempt; ``log`` gets each line of progress.
    """
    config = TrainConfig.model_validate(values)
    (run / layout.CONFIG).write_text(yaml.safe_dump(config.model_dump(mode="json")))
    place = launch.find_place(run, make_attempt=True)
    place = replace(place, note=note or place.note)
    with _data_in(run / "data"), _signals_kept():
        return assemble(
            RunContext(
                config=config,
                place=place,
                ranks=ranks or Ranks.join(config.device),
                events=EventStream(place.attempt_dir / layout.EVENTS),
                signals=StopSignal(),
                timeline=environment.Timeline(),
                log=log,
            )
        )


@contextmanager
def _data_in(folder: Path) -> Iterator[None]:
    before = os.environ.get("LEHR_DATA")
    os.environ["LEHR_DATA"] = str(folder)
    try:
        yield
    finally:
        if before is None:
            del os.environ["LEHR_DATA"]
        else:
            os.environ["LEHR_DATA"] = before


@contextmanager
def _signals_kept() -> Iterator[None]:
    before = {number: signal.getsignal(number) for number in (signal.SIGTERM, signal.SIGINT)}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def recorded(training: Training, kind: str) -> list[dict[str, Any]]:
    """The records of ``kind`` that it has written so far."""
    lines = training.events.path.read_text().splitlines()
    return [record for record in map(json.loads, lines) if record["kind"] == kind]
