"""Checkpoints: where they lie, whether they are whole, what deleting one frees."""

from __future__ import annotations

from typing import Literal

from lehr.schemas.base import View


class CheckpointView(View):
    run_id: str
    attempt: int
    step: int
    path: str
    size_bytes: int
    digest: str
    reason: str
    val_loss: float | None = None
    best: bool = False
    latest: bool = False
    created_at: float
    removed_at: float | None = None
    """When the files that the trainer wrote were removed; a copy may outlive them."""
    node: str | None = None
    """Where those files were written: on shared storage they are everywhere."""
    copy_url: str | None = None
    """Where it is copied to, if its run's spec asks for that."""
    copy_state: Literal["uploading", "there", "failed", "removed"] | None = None
    copy_at: float | None = None
    """When the copy came to that state."""
    copy_error: str | None = None
    """Why it failed, or is tried again."""
    kept: list[str] = []
    """Why retention keeps it, in words; empty once it is gone, or will go at the next save."""


class FileView(View):
    name: str
    size_bytes: int
    sha256: str


class CheckpointFiles(View):
    """What a checkpoint consists of: its data files and, last, the manifest that lists them."""

    run_id: str
    attempt: int
    step: int
    digest: str
    """SHA-256 of manifest.json."""
    files: list[FileView]


class PlaceVerdict(View):
    place: str
    """A folder, or the URL of a copy."""
    ok: bool
    message: str
    """What was compared, or the first thing that is wrong."""


class CheckpointVerdict(View):
    """Each place where a checkpoint lies, read to the end and compared with its manifest."""

    run_id: str
    attempt: int
    step: int
    ok: bool
    """Every place is whole, and there is at least one."""
    places: list[PlaceVerdict]


class CheckpointDeletion(View):
    """What deleting one checkpoint frees, or has freed."""

    run_id: str
    attempt: int
    step: int
    deleted: bool
    bytes: int
    """In all places that can be reached."""
    places: list[str]
    notes: list[str] = []
    """What to know before, in words."""
