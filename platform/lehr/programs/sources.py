"""Where a program logs without ``lehr_log``: W&B's offline records and TensorBoard's event files.

Files are read again from their start when they have grown, and only new rows are passed on. The
pause between two readings grows with the time that one takes.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from pathlib import Path

from lehr.curve_files import tensorboard, wandb_file
from lehr.curve_files.points import CurveRow, Points
from lehr.errors import UserError

_PAUSE_S = 1.0
_SHARE = 20.0
"""Reading takes at most one part of this many of the time."""
_MOST_FILES = 50


class FileSource:
    """The rows of the newest files of one kind below a folder."""

    def __init__(self, folder: Path, pattern: str, read: Callable[[Path], Points]) -> None:
        self._folder, self._pattern, self._read = folder, pattern, read
        self._passed: dict[Path, int] = {}
        self._sizes: dict[Path, int] = {}
        self._due = 0.0
        self.problem: str | None = None
        """Why a file could not be read."""

    def rows(self, *, now: bool = False) -> Iterator[CurveRow]:
        """Yield rows that were not yielded before; ``now`` does not wait for the pause."""
        began = time.monotonic()
        if not now and began < self._due:
            return
        for path in sorted(self._folder.rglob(self._pattern))[:_MOST_FILES]:
            try:
                size = path.stat().st_size
                if size == self._sizes.get(path):
                    continue
                self._sizes[path] = size
                yield from self._new(path)
            except UserError as error:
                self.problem = error.message
            except OSError as error:
                self.problem = f"{path}: {error.strerror}"
        self._due = time.monotonic() + max(_PAUSE_S, _SHARE * (time.monotonic() - began))

    def _new(self, path: Path) -> Iterator[CurveRow]:
        passed = self._passed.get(path, 0)
        for count, point in enumerate(p for p in self._read(path) if isinstance(p, CurveRow)):
            if count >= passed:
                self._passed[path] = count + 1
                yield point


def wandb_source(folder: Path) -> FileSource:
    return FileSource(folder, "*.wandb", wandb_file.points)


def tensorboard_source(folder: Path) -> FileSource:
    return FileSource(folder, tensorboard.PATTERN, lambda path: tensorboard.points([path]))
