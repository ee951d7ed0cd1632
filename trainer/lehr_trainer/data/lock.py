"""A lock under which one process prepares a corpus; the others wait and show its progress."""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
import socket
import time
from collections.abc import Iterator
from pathlib import Path

from lehr_trainer.callbacks import Notify
from lehr_trainer.data.progress import PHASE
from lehr_trainer.errors import BadData

_POLL_S = 0.1
_WRITE_EVERY_S = 2.0


class PreparationLock:
    """An exclusive ``flock`` on a file that names its holder and the holder's progress.

    The kernel releases it when the holder dies, so a waiter takes over.
    """

    def __init__(self, path: Path, file: int, started_by: str) -> None:
        self._path = path
        self._file = file
        self._started_by = started_by

    def report(self, done: float | None) -> None:
        """Write progress to the lock file, for those who wait."""
        content = {"pid": os.getpid(), "host": socket.gethostname(), "done": done}
        text = json.dumps({**content, "started_by": self._started_by}).encode()
        os.pwrite(self._file, text, 0)
        os.ftruncate(self._file, len(text))


@contextlib.contextmanager
def preparation_lock(path: Path, notify: Notify, *, started_by: str) -> Iterator[PreparationLock]:
    """Hold the lock at ``path``; a process that waited must check whether the work is done.

    Raises:
        BadData: the lock file cannot be made (a folder that may not be written).
    """
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        file = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o666)
    except OSError as error:
        raise BadData(
            f"prepared data cannot be written to {path.parent} ({error.strerror}); set LEHR_DATA "
            "to a folder that can be"
        ) from None
    try:
        written_at = -_WRITE_EVERY_S
        while not _try(file):
            if time.monotonic() - written_at >= _WRITE_EVERY_S:
                written_at = time.monotonic()
                notify(PHASE, *_holder(path))
            time.sleep(_POLL_S)
        lock = PreparationLock(path, file, started_by)
        lock.report(None)
        yield lock
    finally:
        os.close(file)


def _try(file: int) -> bool:
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True


def _holder(path: Path) -> tuple[str, float | None]:
    """Return ``waits for pid 123 (run abc), which prepares the data: 43 %`` and 0.43."""
    try:
        content = json.loads(path.read_bytes())
        pid, host, by, done = (content[key] for key in ("pid", "host", "started_by", "done"))
    except (OSError, ValueError, KeyError, TypeError):
        return "waits for another process, which prepares the data", None
    where = "" if host == socket.gethostname() else f" on {host}"
    who = f"waits for pid {pid}{where}" + (f", started by {by}" if by else "")
    share = "" if done is None else f": {done:.0%}".replace("%", " %")
    return f"{who}, which prepares the data{share}", done
