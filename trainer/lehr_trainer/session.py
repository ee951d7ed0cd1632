"""One process of one attempt: what nearly everything in a training needs to know."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from lehr_trainer.boundary import StopSignal
from lehr_trainer.config import TrainConfig
from lehr_trainer.distributed import Ranks
from lehr_trainer.launch import Place
from lehr_trainer.machine import Timeline
from lehr_trainer.streams import EventStream


@dataclass(frozen=True)
class Session:
    config: TrainConfig
    place: Place
    ranks: Ranks
    events: EventStream
    """On ranks other than 0 it writes nowhere."""
    signals: StopSignal
    timeline: Timeline
    say: Callable[[str], None]
    """A line of progress, for the log and whoever watches; rank 0's only."""
    known_checkpoint_seq: int = 0
    """Of the orders that stood when the attempt began."""
