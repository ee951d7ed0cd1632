"""What is known of a mirror: ``<home>/wandb/<run id>/request.json`` and ``progress.json``.

The server writes the request, the mirror's process the progress; each is replaced whole, so a
reader never sees half of one. Neither holds a key.
"""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Literal, TypeVar

from pydantic import BaseModel, ConfigDict, ValidationError

from lehr.schemas import WandbView
from lehr.specs.tracking import WandbTracking
from lehr_trainer.contract.layout import EVENTS
from lehr_trainer.files import write_atomically

MirrorState = Literal["waiting", "mirroring", "done", "failed"]


class MirrorRequest(BaseModel):
    """That a run be mirrored, and how."""

    model_config = ConfigDict(extra="ignore")

    settings: WandbTracking
    at: float
    """When it was asked for: a later request begins anew."""


class MirrorProgress(BaseModel):
    """How far a mirror has come."""

    model_config = ConfigDict(extra="ignore")

    request_at: float
    """The request that it carries out."""
    state: MirrorState = "waiting"
    offsets: dict[int, int] = {}
    """Bytes of each attempt's events that have been taken up."""
    limits: dict[int, int] = {}
    """The last step of each attempt that counts; an attempt that is not here counts whole."""
    ends: dict[int, int] = {}
    """Where the events of attempts end that are behind us: what comes later is too late."""
    records: int = 0
    """Lines of events taken up."""
    rows: int = 0
    """Rows of history given to W&B."""
    run_state: str | None = None
    """The state that the run had when its mirror was closed."""
    url: str | None = None
    folder: str | None = None
    """The offline files, for ``wandb sync``."""
    error: str | None = None


class Notes:
    """One run's notes."""

    def __init__(self, home: Path, run_id: str) -> None:
        self.run_id = run_id
        self.folder = root(home) / run_id

    def request(self) -> MirrorRequest | None:
        return _read(self.folder / "request.json", MirrorRequest)

    def progress(self) -> MirrorProgress | None:
        """None before the mirror has begun with the request that stands."""
        request, found = self.request(), _read(self.folder / "progress.json", MirrorProgress)
        return found if request and found and found.request_at == request.at else None

    def write(self, note: MirrorRequest | MirrorProgress) -> None:
        name = "request.json" if isinstance(note, MirrorRequest) else "progress.json"
        self.folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        write_atomically(self.folder / name, note.model_dump_json())

    def forget(self) -> None:
        shutil.rmtree(self.folder, ignore_errors=True)


N = TypeVar("N", MirrorRequest, MirrorProgress)


def root(home: Path) -> Path:
    return home / "wandb"


def known(home: Path) -> Iterator[Notes]:
    """Of all runs that have a request."""
    if root(home).is_dir():
        for folder in sorted(root(home).iterdir()):
            if (folder / "request.json").is_file():
                yield Notes(home, folder.name)


def view(home: Path, run_id: str, sizes: dict[int, dict[str, int]]) -> WandbView | None:
    """What the API tells of a run's mirror; None when it has none.

    ``sizes`` are the replica's streams by attempt and name.
    """
    notes = Notes(home, run_id)
    request = notes.request()
    if request is None or request.settings.mode == "off":
        return None
    progress = notes.progress() or MirrorProgress(request_at=request.at)
    behind = sum(
        max(0, progress.ends.get(number, streams.get(EVENTS, 0)) - progress.offsets.get(number, 0))
        for number, streams in sizes.items()
    )
    return WandbView(
        mode=request.settings.mode,
        state=progress.state,
        records=progress.records,
        behind_bytes=behind,
        url=progress.url,
        folder=progress.folder,
        error=progress.error,
        text=_text(request.settings.mode, progress, behind),
    )


def _text(mode: str, progress: MirrorProgress, behind: int) -> str:
    if progress.error:
        return f"{mode}, {progress.records:,} records; {progress.error}"
    if progress.state == "waiting" and not progress.records:
        return f"{mode}, not begun"
    if behind:
        return f"{mode}, {progress.records:,} records, {behind:,} bytes to go"
    return f"{mode}, {progress.records:,} of {progress.records:,} records"


def _read(path: Path, kind: type[N]) -> N | None:
    try:
        return kind.model_validate_json(path.read_bytes())
    except (OSError, ValidationError):
        return None
