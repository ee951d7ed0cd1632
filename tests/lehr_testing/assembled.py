"""A training in this process, ready for its first step: for benches, and tests of single steps."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import yaml

from lehr_trainer import launch, layout, machine
from lehr_trainer.assemble import assemble
from lehr_trainer.boundary import StopSignal
from lehr_trainer.config import TrainConfig
from lehr_trainer.distributed import Ranks
from lehr_trainer.session import Session
from lehr_trainer.streams import EventStream
from lehr_trainer.train import Training


def assembled(run: Path, values: dict[str, Any]) -> Training:
    """The next attempt of the run in the folder ``run``, of the config ``values``.

    Prepared data lies in the folder, too. Signals stay what they were: nothing here obeys them.
    """
    config = TrainConfig.model_validate(values)
    (run / layout.CONFIG).write_text(yaml.safe_dump(config.model_dump(mode="json")))
    place = launch.find_place(run, make_attempt=True)
    assert place is not None
    with _data_in(run / "data"), _signals_kept():
        return assemble(
            Session(
                config=config,
                place=place,
                ranks=Ranks.join(config.device),
                events=EventStream(place.attempt_dir / layout.EVENTS),
                signals=StopSignal(),
                timeline=machine.Timeline(),
                say=lambda _line: None,
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
