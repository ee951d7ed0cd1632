"""Checkpoints: locations, completeness, what deleting one frees. Capsules: the code of a run."""

from __future__ import annotations

from typing import Literal

from lehr.schemas.base import Measured, View


class CheckpointView(View):
    run_id: str
    attempt: int
    step: int
    path: str
    size_bytes: int
    digest: str
    reason: str
    val_loss: Measured | None = None
    score: Measured | None = None
    """The value of the task that train.checkpoint.keep_best names, if any."""
    best: bool = False
    latest: bool = False
    created_at: float
    removed_at: float | None = None
    """When the trainer's files were removed; a copy may still exist."""
    node: str | None = None
    """The node on which the files were written; files on shared storage are on all nodes."""
    copy_url: str | None = None
    """URL of its copy, if the run's spec requests copies."""
    copy_state: Literal["uploading", "there", "failed", "removed"] | None = None
    copy_at: float | None = None
    """When the copy reached that state."""
    copy_error: str | None = None
    """Why it failed, or is retried."""
    kept: list[str] = []
    """Why retention keeps it; empty once it is removed, or will be at the next save."""

    @property
    def exists(self) -> bool:
        """Whether its files or its copy exist."""
        return self.removed_at is None or self.copy_state == "there"


class FileView(View):
    name: str
    size_bytes: int
    sha256: str


class CheckpointFiles(View):
    """The files of a checkpoint: its data files and, last, the manifest that lists them."""

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
    """What was checked, or the first mismatch."""


class CheckpointVerdict(View):
    """The result of reading a checkpoint completely in each location."""

    run_id: str
    attempt: int
    step: int
    ok: bool
    """Every location is complete, and there is at least one."""
    places: list[PlaceVerdict]


class CheckpointDeletion(View):
    """What deleting one checkpoint frees, or has freed."""

    run_id: str
    attempt: int
    step: int
    deleted: bool
    bytes: int
    """In all locations that can be reached."""
    places: list[str]
    notes: list[str] = []
    """What to know before deleting."""


class CapsuleFile(View):
    name: str
    """Path in the capsule: `trainer/` holds Lehr's packages, `project/` the user's files."""
    bytes: int


class CapsuleView(View):
    digest: str
    """SHA-256 of the archive."""
    bytes: int
    """Size of the archive."""
    installed: bool
    """Whether it is the trainer that is installed with the server now, and nothing else."""
    files: list[CapsuleFile]


class FileChange(View):
    name: str
    change: Literal["added", "removed", "changed"]
    patch: str | None = None
    """Unified diff; null for a file that is not text, or too large to show."""


class CodeDiff(View):
    first: str
    """Digest of the first capsule."""
    second: str
    """Digest of the second capsule."""
    changes: list[FileChange]
    """Files that differ, by name. Empty: the same code."""
