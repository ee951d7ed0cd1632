"""Messages of the server to the mirror's process: one JSON line per run; the newest counts."""

from __future__ import annotations

from typing import Any

from pydantic import BaseModel, ConfigDict

from lehr.control.lifecycle import ENDED, RunState


class AttemptFeed(BaseModel):
    number: int
    size: int
    """Confirmed bytes of its events."""
    open: bool
    """More may arrive."""


class CheckpointFeed(BaseModel):
    """A checkpoint that exists."""

    step: int
    path: str
    """Relative to the run directory."""
    copy_url: str | None = None
    """URL of its complete copy, if the run's spec requests copies."""
    size_bytes: int
    digest: str
    val_loss: float | None = None
    best: bool = False
    latest: bool = False


class Closing(BaseModel):
    """The summary of a run that has ended or is paused."""

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
        """Return whether it has ended or is paused, and all its events have arrived."""
        state = RunState(self.state)
        calm = state in ENDED or state is RunState.PAUSED
        return calm and not any(attempt.open for attempt in self.attempts)
