"""Context of one process of one attempt: what most parts of a training need."""

from __future__ import annotations

from dataclasses import dataclass

from lehr_trainer.callbacks import LogFn
from lehr_trainer.configs.train import TrainConfig
from lehr_trainer.runtime.distributed import Ranks
from lehr_trainer.runtime.environment import Timeline
from lehr_trainer.runtime.event_stream import EventStream
from lehr_trainer.runtime.launch import RunPaths
from lehr_trainer.step_control import StopSignal


@dataclass(frozen=True)
class RunContext:
    config: TrainConfig
    """Resolved for the ranks' device."""
    place: RunPaths
    ranks: Ranks
    events: EventStream
    """Writes nothing on ranks other than 0."""
    signals: StopSignal
    timeline: Timeline
    log: LogFn
    """Prints a line of progress, on rank 0 only."""
    known_checkpoint_seq: int = 0
    """Sequence number in the orders when the attempt began."""

    def __post_init__(self) -> None:
        object.__setattr__(self, "config", self.config.on(self.ranks.device.type))
