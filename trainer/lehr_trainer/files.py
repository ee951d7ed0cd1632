"""Files that appear whole, and stay through a power cut. Standard library only.

``lehr.base.procfs`` has its own: processes of a node start without this package.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import os
import secrets
import stat
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import IO

_POLL_S = 0.1


def write_atomically(path: Path, text: str, *, mode: int = 0o666) -> None:
    """Replace the file: a reader sees the old content or the new one, also after a power cut.

    When it returns, the new content is on the disk.

    ``mode``: the permissions of the new file, less those that the umask takes away.
    """
    with _draft(path, text.encode(), mode) as draft:
        draft.replace(path)
        fsync_folder(path.parent)


def open_regular(path: str | Path, *, dir_fd: int | None = None, follow: bool = False) -> IO[bytes]:
    """Open a regular file for reading, whoever made it.

    A pipe or a device, which could be read for ever, is not opened, and a link only if ``follow``.

    Raises:
        OSError: it cannot be opened, or is none.
    """
    flags = os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC | (0 if follow else os.O_NOFOLLOW)
    descriptor = os.open(path, flags, dir_fd=dir_fd)
    if stat.S_ISREG(os.fstat(descriptor).st_mode):
        return os.fdopen(descriptor, "rb")
    os.close(descriptor)
    raise OSError(errno.EINVAL, "it is not a regular file", str(path))


def ensure_secret(path: Path, new: bytes) -> bytes:
    """Return the content of a secret's file; make it of ``new``, for its owner alone, if it has
    none.

    A file that a power cut has emptied, or filled with zeros, has none.
    """
    damaged = path.exists()
    if damaged and (held := path.read_bytes()).strip(b"\0\r\n\t "):
        return held
    with _draft(path, new, 0o600) as draft:
        if damaged:
            draft.replace(path)
        else:
            with contextlib.suppress(FileExistsError):  # Of two at once, the first wins.
                os.link(draft, path)
        fsync_folder(path.parent)
    return path.read_bytes()


def wait_for_lock(file: int, waiting: Callable[[float], None], every_s: float) -> None:
    """Take the exclusive lock of an open file. The kernel releases it when its holder dies.

    ``waiting`` is called with the seconds so far, at once and then every ``every_s``.
    """
    began = time.monotonic()
    calls = 0
    while True:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            waited = time.monotonic() - began
            if waited >= calls * every_s:
                calls += 1
                waiting(waited)
            time.sleep(_POLL_S)
        else:
            return


def fsync_folder(folder: Path) -> None:
    """Make renames inside ``folder`` last through a power cut."""
    handle = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


@contextlib.contextmanager
def _draft(path: Path, data: bytes, mode: int) -> Iterator[Path]:
    """Write a draft beside ``path``, to the disk. What is left of it is removed at the end."""
    draft = path.with_name(f".{path.name}-{secrets.token_hex(8)}")
    try:
        with os.fdopen(os.open(draft, os.O_WRONLY | os.O_CREAT | os.O_EXCL, mode), "wb") as file:
            file.write(data)
            file.flush()
            os.fsync(file.fileno())
        yield draft
    finally:
        draft.unlink(missing_ok=True)
