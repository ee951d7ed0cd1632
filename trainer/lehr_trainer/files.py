"""Files that appear whole, and stay through a power cut. Standard library only."""

from __future__ import annotations

import contextlib
import os
import secrets
from pathlib import Path


def write_atomically(path: Path, text: str, *, mode: int = 0o666) -> None:
    """Replace the file: a reader sees the old content or the new one.

    ``mode``: the permissions of the new file, less those that the umask takes away.
    """
    draft = _draft(path)
    try:
        with os.fdopen(os.open(draft, os.O_WRONLY | os.O_CREAT | os.O_EXCL, mode), "wb") as file:
            file.write(text.encode())
        draft.replace(path)
    except BaseException:
        draft.unlink(missing_ok=True)
        raise


def create_secret(path: Path, data: bytes) -> None:
    """Create the file, readable by its owner alone and on the disk; keep one that exists."""
    draft = _draft(path)
    descriptor = os.open(draft, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    try:
        try:
            os.write(descriptor, data)
            os.fsync(descriptor)
        finally:
            os.close(descriptor)
        with contextlib.suppress(FileExistsError):  # Of two at once, the first wins.
            os.link(draft, path)
    finally:
        draft.unlink()


def fsync_folder(folder: Path) -> None:
    """Make renames inside ``folder`` last through a power cut."""
    handle = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


def _draft(path: Path) -> Path:
    return path.with_name(f".{path.name}-{secrets.token_hex(8)}")
