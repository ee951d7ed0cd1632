"""Where a program logs without ``lehr_log``: W&B's offline records, TensorBoard's event files, and
the ``metrics.csv`` of Lightning's CSVLogger.

Files are read again from their start when they have grown, and only new rows are passed on. The
pause between two readings grows with the time that one takes. What the program did not write is not
read: files of its project, and files that a checkpoint has put back.
"""

from __future__ import annotations

import stat
import time
from collections.abc import Callable, Iterator
from pathlib import Path

from lehr.analysis.curve_files import binary, text
from lehr.analysis.curve_files.collector import CurveRow, Points
from lehr.errors import UserError

_PAUSE_S = 1.0
_SHARE = 20.0
"""Reading takes at most one part of this many of the time."""
_MOST_FILES = 50
_TIME = "_timestamp"
"""The time of a row among W&B's own values."""


class FileSource:
    """The rows of the files of one kind below a folder, each with its time.

    Rows of a file without times are spread over the time in which it has grown by them.
    """

    def __init__(self, folder: Path, pattern: str, read: Callable[[Path], Points]) -> None:
        self._folder, self._pattern, self._read = folder, pattern, read
        self._passed: dict[Path, int] = {}
        self._sizes: dict[Path, int] = {}
        self._changed: dict[Path, float] = {}
        self._there = {path: path.lstat().st_mtime_ns for path in folder.rglob(pattern)}
        self._due = 0.0
        self.problem: str | None = None
        """Why a file could not be read."""

    def rows(self, *, now: bool = False) -> Iterator[CurveRow]:
        """Yield rows that were not yielded before; ``now`` does not wait for the pause."""
        began = time.monotonic()
        if not now and began < self._due:
            return
        for path in self._paths():
            try:
                status = path.lstat()
                ours = stat.S_ISREG(status.st_mode) and status.st_mtime_ns != self._there.get(path)
                if not ours or status.st_size == self._sizes.get(path):
                    continue
                self._sizes[path] = status.st_size
                yield from self._timed(path, status.st_mtime)
            except UserError as error:
                self.problem = error.message
            except OSError as error:
                self.problem = f"{path}: {error.strerror}"
        self._due = time.monotonic() + max(_PAUSE_S, _SHARE * (time.monotonic() - began))

    def _paths(self) -> list[Path]:
        try:
            return sorted(self._folder.rglob(self._pattern))[:_MOST_FILES]
        except OSError:
            return []  # A folder was removed meanwhile: the next look finds the others.

    def _timed(self, path: Path, changed: float) -> Iterator[CurveRow]:
        began = self._changed.get(path, changed)
        self._changed[path] = changed
        waiting: list[CurveRow] = []
        for row in self._new(path):
            at = row.at or row.values.get(_TIME)
            if at is not None:
                yield row._replace(at=at)
            else:
                waiting.append(row)
        for number, row in enumerate(waiting, 1):
            yield row._replace(at=began + (changed - began) * number / len(waiting))

    def _new(self, path: Path) -> Iterator[CurveRow]:
        passed = self._passed.get(path, 0)
        for count, point in enumerate(p for p in self._read(path) if isinstance(p, CurveRow)):
            if count >= passed:
                self._passed[path] = count + 1
                yield point


def wandb_source(folder: Path) -> FileSource:
    return FileSource(folder, binary.WANDB, binary.wandb_points)


def tensorboard_source(folder: Path) -> FileSource:
    return FileSource(folder, binary.TENSORBOARD, lambda path: binary.tensorboard_points([path]))


def csv_source(folder: Path) -> FileSource:
    return FileSource(
        folder, "metrics.csv", lambda path: text.csv_points(path, _every, set(), growing=True)
    )


def _every(_name: str) -> bool:
    return True
