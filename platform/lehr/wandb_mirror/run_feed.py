"""What the server tells the mirror's process of a run: one JSON line each, the newest holds."""

from __future__ import annotations

from typing import Any

from pydantic import BaseModel, ConfigDict

from lehr.control.lifecycle import ENDED, RunState


class AttemptFeed(BaseModel):
    number: int
    size: int
    """Bytes of its events that are confirmed."""
    open: bool
    """More may come."""


class CheckpointFeed(BaseModel):
    """A checkpoint that is there."""

    step: int
    path: str
    """Relative to the run directory."""
    copy_url: str | None = None
    """Where a whole copy of it lies, if its run's spec asks for copies."""
    size_bytes: int
    digest: str
    val_loss: float | None = None
    best: bool = False
    latest: bool = False


class Closing(BaseModel):
    """What is said of a run once it has come to rest."""

    summary: dict[str, Any]
    checkpoints: list[CheckpointFeed] = []
    run_directory: str
    exit_code: int


class RunFeed(BaseModel):
    model_config = ConfigDict(ser_json_inf_nan="strings")

    run_id: str
    name: str
    project: str
    sweep: str | None = None
    tags: list[str] = []
    notes: str = ""
    state: str
    config: dict[str, Any]
    attempts: list[AttemptFeed] = []
    spans: dict[int, int] = {}
    """By attempt that counts, its last step that counts."""
    closing: Closing | None = None

    @property
    def resting(self) -> bool:
        """It has ended or is paused, and everything that it said has come."""
        state = RunState(self.state)
        calm = state in ENDED or state is RunState.PAUSED
        return calm and not any(attempt.open for attempt in self.attempts)
