"""One process prepares a corpus; the others wait, and can say for whom and how long."""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
import socket
import time
from collections.abc import Iterator
from pathlib import Path

from lehr_trainer.data.progress import PHASE, Notify
from lehr_trainer.errors import BadData

_POLL_S = 0.1
_TELL_EVERY_S = 2.0


class PreparationLock:
    """An exclusive ``flock`` whose file says who holds it and how far they are.

    The kernel lets go when the holder dies, so a waiter takes over what was left behind.
    """

    def __init__(self, path: Path, file: int, started_by: str) -> None:
        self._path = path
        self._file = file
        self._started_by = started_by

    def tell(self, done: float | None) -> None:
        """Write down how far we are, for those who wait."""
        said = {"pid": os.getpid(), "host": socket.gethostname(), "done": done}
        text = json.dumps({**said, "started_by": self._started_by}).encode()
        os.pwrite(self._file, text, 0)
        os.ftruncate(self._file, len(text))


@contextlib.contextmanager
def preparation_lock(path: Path, notify: Notify, *, started_by: str) -> Iterator[PreparationLock]:
    """Hold the lock at ``path``; whoever had to wait looks first whether the work is done.

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
        told = -_TELL_EVERY_S
        while not _try(file):
            if time.monotonic() - told >= _TELL_EVERY_S:
                told = time.monotonic()
                notify(PHASE, *_holder(path))
            time.sleep(_POLL_S)
        lock = PreparationLock(path, file, started_by)
        lock.tell(None)
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
    """``waits for pid 123 (run abc), which prepares the data: 43 %`` and 0.43."""
    try:
        said = json.loads(path.read_bytes())
        pid, host, by, done = (said[key] for key in ("pid", "host", "started_by", "done"))
    except (OSError, ValueError, KeyError, TypeError):
        return "waits for another process, which prepares the data", None
    where = "" if host == socket.gethostname() else f" on {host}"
    who = f"waits for pid {pid}{where}" + (f", started by {by}" if by else "")
    share = "" if done is None else f": {done:.0%}".replace("%", " %")
    return f"{who}, which prepares the data{share}", done
