"""One process of one attempt: what nearly everything in a training needs to know."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from lehr_trainer.configs.train import TrainConfig
from lehr_trainer.runtime.distributed import Ranks
from lehr_trainer.runtime.environment import Timeline
from lehr_trainer.runtime.event_stream import EventStream
from lehr_trainer.runtime.launch import RunPaths
from lehr_trainer.step_control import StopSignal


@dataclass(frozen=True)
class RunContext:
    config: TrainConfig
    place: RunPaths
    ranks: Ranks
    events: EventStream
    """On ranks other than 0 it writes nowhere."""
    signals: StopSignal
    timeline: Timeline
    say: Callable[[str], None]
    """A line of progress, for the log and whoever watches; rank 0's only."""
    known_checkpoint_seq: int = 0
    """Of the orders that stood when the attempt began."""
