"""What ends a training run on purpose, and what is wrong with a config.

::

    TrainerError              cause, message: written to the ``finished`` record
    ├── BadConfig             cannot work on this machine or with this data
    ├── BadData               corpus, shard or tokenizer is wrong
    │   └── DataUnreachable   hub, disk or file server is away; trying again may help
    ├── BadCheckpoint         does not verify or does not fit
    │   └── MissingCheckpoint     is not on this machine; it may be on another
    ├── NanLoss               the loss is not finite
    └── DiskFull              a write failed for lack of space
    UnknownPreset (ValueError)  so that Pydantic reports it at its field
"""

from __future__ import annotations

from typing import ClassVar


class TrainerError(Exception):
    cause: ClassVar[str] = "error"


class BadConfig(TrainerError):
    cause = "bad_config"


class BadData(TrainerError):
    cause = "bad_data"


class DataUnreachable(BadData):
    cause = "data_unreachable"


class BadCheckpoint(TrainerError):
    cause = "bad_checkpoint"


class MissingCheckpoint(BadCheckpoint):
    cause = "missing_checkpoint"


class NanLoss(TrainerError):
    cause = "nan_loss"


class DiskFull(TrainerError):
    cause = "disk_full"


def error_of(cause: str, message: str) -> TrainerError:
    """Rebuild an error that another rank met, from its cause."""
    kinds = [TrainerError]
    for kind in kinds:
        kinds.extend(kind.__subclasses__())
    fitting = next((kind for kind in kinds if kind.cause == cause), TrainerError)
    return fitting(message)


class UnknownPreset(ValueError):
    def __init__(self, name: str, valid: list[str]) -> None:
        super().__init__(f"there is no preset {name!r}; there are: {', '.join(valid)}")
        self.name = name
        self.valid = valid
