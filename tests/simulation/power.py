"""What a power cut of the server's machine leaves: only what the server has flushed to disk.

Streams: the replica's calls of ``os`` are followed, so that the real ``Writing.flush`` decides.
Databases: a commit of SQLite is durable if ``synchronous`` is FULL, and else with the next such
commit or checkpoint; the rest of the write-ahead log is cut off.
"""

from __future__ import annotations

import os
import random
import shutil
import sqlite3
import struct
from pathlib import Path
from typing import Any
from unittest.mock import patch

from lehr_trainer import files

FULL = 2
_HEADER = 32
_FRAME = 24


class Disk:
    """The files of the replica: how much of each is durable. One for all starts of a server."""

    def __init__(self) -> None:
        self._paths: dict[int, tuple[str, ...]] = {}
        self._dirty: dict[tuple[str, ...], int] = {}
        """By attempt and name: the bytes that are durable of a file with others."""
        self._new: set[tuple[str, ...]] = set()
        """Files, and folders of attempts, whose name is not durable."""

    def cut(self, replica: Path, rng: random.Random) -> int:
        """Take from the replica what is not durable; some of it may have been written all the same.

        Return how many files have lost bytes.
        """
        lost = 0
        for key, durable in sorted(self._dirty.items()):
            path = replica.joinpath(*key)
            if not path.exists():
                continue
            size = path.stat().st_size
            kept = rng.choice([durable, durable, rng.randint(durable, size)]) if size else 0
            os.truncate(path, kept)
            if rng.random() < 0.2:
                os.truncate(path, size)  # The size was written, and the content was not: NULs.
            lost += kept < size
        for key in sorted(self._new):
            path = replica.joinpath(*key)
            if rng.random() < 0.7 and path.exists():
                lost += 1
                shutil.rmtree(path) if path.is_dir() else path.unlink()
        self._dirty.clear()
        self._new.clear()
        return lost

    # ------------------------------------------------------------------ what the replica calls

    def __getattr__(self, name: str) -> Any:
        return getattr(os, name)

    def open(self, path: Path, flags: int, mode: int = 0o777) -> int:
        new = bool(flags & os.O_CREAT) and not path.exists()
        descriptor = os.open(path, flags, mode)
        key = path.parts[-2:] if not path.is_dir() else (path.name,)
        self._paths[descriptor] = key
        if new:
            self._new.add(key)
            if len(list(path.parent.iterdir())) == 1:
                self._new.add(key[:1])
        return descriptor

    def pwrite(self, descriptor: int, data: Any, offset: int) -> int:
        self._changed(descriptor)
        return os.pwrite(descriptor, data, offset)

    def write(self, descriptor: int, data: Any) -> int:
        self._changed(descriptor)
        return os.write(descriptor, data)

    def _changed(self, descriptor: int) -> None:
        key = self._paths[descriptor]
        if key not in self._dirty:
            self._dirty[key] = os.fstat(descriptor).st_size

    def fdatasync(self, descriptor: int) -> None:
        self._dirty.pop(self._paths[descriptor], None)

    def fsync(self, descriptor: int) -> None:
        key = self._paths[descriptor]
        self._dirty.pop(key, None)
        if len(key) == 1:  # A folder: the replica's own, or that of an attempt.
            depth = 1 if key == ("replica",) else 2
            self._new = {
                one for one in self._new if len(one) != depth or (depth == 2 and one[0] != key[0])
            }

    def close(self, descriptor: int) -> None:
        self._paths.pop(descriptor, None)
        os.close(descriptor)

    def fsync_folder(self, folder: Path) -> None:
        with patch.object(files, "os", self):
            files.fsync_folder(folder)


class DatabaseDisk:
    """A database file: how much of its write-ahead log is durable."""

    def __init__(self, path: Path, connection: sqlite3.Connection) -> None:
        """Take over the connection's own setting, and spare the real flushes."""
        self.path = path
        self._connection = connection
        self.level = self._setting()
        self._lag = self.level != FULL  # Whether there have been commits that were not flushed.
        self._since = self._log()[:2]  # The log at the first of them.
        self._until: tuple[bytes, int] | None = None
        """The log after the last of them; None while they go on."""

    def _setting(self) -> int:
        found = int(self._connection.execute("PRAGMA synchronous").fetchone()[0])
        self._connection.execute("PRAGMA synchronous=OFF")
        return found

    def set_level(self, level: str) -> None:
        """Follow ``PRAGMA synchronous``, as the product sets it around a commit."""
        if level == "FULL":
            self.level = FULL
            self._until = self._log()[:2]
            return
        if not self._lag or self._flushed_since():
            self._since, self._lag = self._log()[:2], True
        self.level, self._until = 1, None

    def _flushed_since(self) -> bool:
        """Return whether a commit with FULL came after those without it."""
        return self._until is not None and self._log()[:2] != self._until

    def _log(self) -> tuple[bytes, int, int, int]:
        """Return the log's salt, its valid frames, those that are in the database, the page size."""
        data = Path(f"{self.path}-shm").read_bytes()[:100] if self._exists() else b""
        if len(data) < 100:
            return (b"", 0, 0, 4096)
        (page,) = struct.unpack_from("=H", data, 14)
        (frames,) = struct.unpack_from("=I", data, 16)
        (backfilled,) = struct.unpack_from("=I", data, 96)
        return (data[32:40], frames, backfilled, 65536 if page == 1 else page)

    def _exists(self) -> bool:
        return Path(f"{self.path}-shm").exists()

    def durable(self) -> int:
        """Return how many frames of the log are durable."""
        salt, frames, backfilled, _ = self._log()
        if not self._lag or (self.level == FULL and self._flushed_since()):
            return frames
        # A log that was begun again since then was in the database before.
        before = self._since[1] if self._since[0] == salt else 0
        return max(before, backfilled)

    def cut(self, home: Path, rng: random.Random) -> bool:
        """Leave in ``home``, a copy, what is durable. Return whether anything is lost."""
        _, frames, _, page = self._log()
        durable = self.durable()
        kept = rng.choice([durable, durable, rng.randint(durable, frames)])
        log = home / f"{self.path.name}-wal"
        if log.exists():
            os.truncate(log, min(log.stat().st_size, _HEADER + kept * (_FRAME + page)))
        (home / f"{self.path.name}-shm").unlink(missing_ok=True)
        return kept < frames
