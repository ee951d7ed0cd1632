"""Files that appear whole, and stay through a power cut. Standard library only."""

from __future__ import annotations

import contextlib
import errno
import os
import secrets
import stat
from pathlib import Path
from typing import IO


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


def open_regular(path: str | Path, *, dir_fd: int | None = None) -> IO[bytes]:
    """Open a regular file for reading, whoever made it.

    A link is not followed, and a pipe or a device, which could be read for ever, is not opened.

    Raises:
        OSError: it cannot be opened, or is none.
    """
    flags = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
    descriptor = os.open(path, flags, dir_fd=dir_fd)
    if stat.S_ISREG(os.fstat(descriptor).st_mode):
        return os.fdopen(descriptor, "rb")
    os.close(descriptor)
    raise OSError(errno.EINVAL, "it is not a regular file", str(path))


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
