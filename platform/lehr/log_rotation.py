"""Keep the logs that processes append to from growing without limit.

The server's own log, ``server.log``, rotates itself. The others are the output of processes that
hold them open for weeks, so they are copied and emptied in place.
"""

from __future__ import annotations

import contextlib
import logging
import os
import shutil
import threading
from pathlib import Path

APPENDED = ("server.out", "bridge.log", "wandb.log", "keeper.log", "ray.log", "ray-node.log")
MOST_BYTES = 20 * 1000 * 1000
EVERY_S = 60.0
log = logging.getLogger(__name__)


def rotate(folder: Path, *, most_bytes: int = MOST_BYTES) -> list[str]:
    """Move the content of each log that is too large to ``NAME.1``. Return their names.

    Lines that are written between the copy and the emptying are lost: at most a few.
    """
    rotated = []
    for name in APPENDED:
        path = folder / name
        with contextlib.suppress(FileNotFoundError):
            if path.stat().st_size <= most_bytes:
                continue
            draft = path.with_name(f".{name}.1.tmp")
            with path.open("rb") as source, draft.open("wb") as copy:
                # A log may have grown far beyond the limit; its end is what matters.
                source.seek(max(0, path.stat().st_size - most_bytes))
                shutil.copyfileobj(source, copy)
            draft.chmod(0o600)
            draft.replace(path.with_name(f"{name}.1"))
            os.truncate(path, 0)
            rotated.append(name)
    return rotated


class LogRotation:
    """A thread that rotates the logs of a home."""

    def __init__(
        self, folder: Path, *, every_s: float = EVERY_S, most_bytes: int = MOST_BYTES
    ) -> None:
        self._folder, self._every_s, self._most_bytes = folder, every_s, most_bytes
        self._stopping = threading.Event()
        self._thread = threading.Thread(target=self._run, name="log-rotation", daemon=True)

    def start(self) -> None:
        self._thread.start()

    def stop(self) -> None:
        self._stopping.set()
        self._thread.join()

    def _run(self) -> None:
        while not self._stopping.wait(self._every_s):
            try:
                rotate(self._folder, most_bytes=self._most_bytes)
            except OSError as error:
                log.warning("logs were not rotated: %s", error)
