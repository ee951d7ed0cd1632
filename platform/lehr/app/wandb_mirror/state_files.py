"""The state of a mirror: ``<home>/wandb/<run id>/request.json`` and ``progress.json``.

The server writes the request, the mirror's process the progress. Each file is replaced atomically,
so a reader never sees half of one. Neither contains a key.
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Literal, TypeVar

from pydantic import BaseModel, ConfigDict, ValidationError

from lehr.control.lifecycle import ENDED, RunState
from lehr.schemas.checkpoints import CheckpointView
from lehr.schemas.runs import WandbView
from lehr.specs.run import WandbTracking
from lehr_trainer.files import write_atomically

MirrorState = Literal["waiting", "mirroring", "done", "failed"]
_WORDS = {"waiting": "not started", "mirroring": "mirroring", "done": "complete"}


class MirrorRequest(BaseModel):
    """A request to mirror a run, with its settings."""

    settings: WandbTracking
    at: float  # Time of the request: a later request starts over.


class SentScores(BaseModel):
    """Scores of an attempt, and their place in the sequence of rows: they may come at any time."""

    attempt: int
    start: int
    end: int  # In bytes of its scores.
    after: int  # Number of rows before them.


class MirrorProgress(BaseModel):
    request_at: float  # The request that it carries out.
    state: MirrorState = "waiting"
    limits: dict[int, int] = {}
    """The last step of each attempt that counts; all of an attempt without an entry counts."""
    ends: dict[int, int] = {}  # Ends of attempts whose later events are ignored.
    rows: int = 0  # Rows of history sent to W&B.
    scores: list[SentScores] = []
    """What evaluations have reported, in the order in which it is sent."""
    run_state: str | None = None  # The run's state when its mirror was closed.
    url: str | None = None
    folder: str | None = None  # The offline files, for ``wandb sync``.
    error: str | None = None

    @property
    def scored(self) -> dict[int, int]:
        """Return up to which byte of its scores each attempt is mirrored."""
        return {sent.attempt: sent.end for sent in self.scores}


class Notes:
    """The state files of one run."""

    def __init__(self, home: Path, run_id: str) -> None:
        self.run_id = run_id
        self.folder = root(home) / run_id

    def request(self) -> MirrorRequest | None:
        return _read(self.folder / "request.json", MirrorRequest)

    def progress(self) -> MirrorProgress | None:
        """Return the progress; None before the mirror has begun with the current request."""
        request, found = self.request(), _read(self.folder / "progress.json", MirrorProgress)
        return found if request and found and found.request_at == request.at else None

    def write(self, note: MirrorRequest | MirrorProgress) -> None:
        """Write a note. Only a request creates the folder: a deleted one must not come back."""
        if isinstance(note, MirrorRequest):
            self.folder.mkdir(mode=0o700, parents=True, exist_ok=True)
            write_atomically(self.folder / "request.json", note.model_dump_json())
        elif self.folder.is_dir():
            write_atomically(self.folder / "progress.json", note.model_dump_json())

    def fail(self, message: str) -> None:
        """Record an error where users see it: one line, without a key."""
        request = self.request()
        if request is None:
            return
        progress = self.progress() or MirrorProgress(request_at=request.at)
        secret = os.environ.get("WANDB_API_KEY")
        text = message.replace(secret, "***") if secret else message
        progress.state, progress.error = "failed", " ".join(text.split())[:300]
        self.write(progress)

    @property
    def forgotten(self) -> bool:
        """Whether the request was deleted with its run."""
        return not (self.folder / "request.json").exists()

    def forget(self) -> bool:
        """Delete all files. Return whether none is left: W&B may still be writing one."""
        shutil.rmtree(self.folder, ignore_errors=True)
        return not self.folder.exists()


N = TypeVar("N", MirrorRequest, MirrorProgress)


def root(home: Path) -> Path:
    return home / "wandb"


def known(home: Path) -> Iterator[Notes]:
    """Return the notes of all runs that have files, also those left by a deletion."""
    if root(home).is_dir():
        for folder in sorted(root(home).iterdir()):
            if folder.is_dir() and not folder.name.startswith("."):
                yield Notes(home, folder.name)


def view(home: Path, run_id: str) -> WandbView | None:
    """Return the API's view of a run's mirror; None when it has none."""
    notes = Notes(home, run_id)
    request = notes.request()
    if request is None or request.settings.mode == "off":
        return None
    progress = notes.progress() or MirrorProgress(request_at=request.at)
    return WandbView(
        mode=request.settings.mode,
        text=f"{request.settings.mode}, {progress.error or _WORDS[progress.state]}",
        **progress.model_dump(include={"state", "url", "folder", "error"}),
    )


def _read(path: Path, kind: type[N]) -> N | None:
    try:
        return kind.model_validate_json(path.read_bytes())
    except (OSError, ValidationError):
        return None


class AttemptFeed(BaseModel):
    number: int
    size: int  # Confirmed bytes of its events.
    scores: int = 0  # The same of its scores.
    open: bool  # More may arrive.


class Closing(BaseModel):
    """The summary of a run that has ended or is paused."""

    summary: dict[str, Any]
    checkpoints: list[CheckpointView] = []
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
    spans: dict[int, int] = {}  # By attempt that counts, its last step that counts.
    closing: Closing | None = None

    @property
    def scored(self) -> dict[int, int]:
        return {one.number: one.scores for one in self.attempts if one.scores}

    @property
    def resting(self) -> bool:
        state = RunState(self.state)
        calm = state in ENDED or state is RunState.PAUSED
        return calm and not any(attempt.open for attempt in self.attempts)
