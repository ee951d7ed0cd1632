"""Orders from the platform to an attempt, and the launcher's note.

Orders are level-triggered: the file holds the request, not a queue of commands. It is replaced
atomically, so a reader sees either the old or the new request, complete.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any, Literal

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from lehr_trainer.files import open_regular


class Orders(BaseModel):
    """What the attempt should be doing.

    ``desired``: run: train on. pause: save, then exit. stop: exit without saving (cancel, prune).
    ``checkpoint_seq``: save once whenever this number grows. ``keep``: checkpoints that retention
    must not remove, whatever its policy: a waiting run will resume from them.
    """

    model_config = ConfigDict(extra="ignore", frozen=True)

    desired: Literal["run", "pause", "stop"] = "run"
    checkpoint_seq: int = 0
    reason: str = ""
    keep: tuple[str, ...] = ()
    """Folders, relative to the run directory."""


class LaunchNote(BaseModel):
    """Written before torchrun starts. Absent when the trainer runs alone."""

    model_config = ConfigDict(extra="ignore", frozen=True)

    run_id: str = ""
    attempt: int = 1
    resume_from: str | None = None
    """Checkpoint folder, relative to the run directory or absolute (a fork); None starts fresh."""
    resume: Literal["pinned", "auto", "never"] = "auto"
    """pinned: exactly ``resume_from``, falling back to older ones of this run if it does not
    verify; auto: the newest checkpoint of any earlier attempt that verifies; never: start at
    step 0."""
    skip_through: int | None = None
    """A rewind: skip the data of the steps after the checkpoint until this one."""
    record: dict[str, Any] = Field(default_factory=dict)
    """What the platform's record says of the run, so that a lost one can be made again."""
    corpus_checked: bool = False
    """The server found the corpus when the run was submitted. So if it is missing, it is away."""


def read_orders(path: Path) -> Orders:
    """Read the orders in ``path``; the default (run) if the file is missing or unreadable."""
    try:
        with open_regular(path) as file:
            return Orders.model_validate_json(file.read())
    except (OSError, ValidationError):
        return Orders()
