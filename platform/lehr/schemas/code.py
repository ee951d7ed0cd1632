"""Schemas of capsules: the code that trains a run."""

from __future__ import annotations

from typing import Literal

from lehr.schemas.base import View


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
