"""The replica: each stream of each attempt as a file, ``<home>/replica/<attempt id>/<name>``.

These files are authoritative; the index (``streams.db``) follows them. They are append-only.
"""

from __future__ import annotations

import json
import os
import re
import shutil
from collections.abc import Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor, wait
from dataclasses import asdict, dataclass
from pathlib import Path

from lehr.errors import NotFound, StoreUnavailable, UserError
from lehr.store.ids import split_attempt_id
from lehr_trainer.contract import layout
from lehr_trainer.files import fsync_folder

_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,99}")
FLUSHERS = 32  # Files that are flushed at the same time.
_PARALLEL_FROM = 3  # With fewer files, threads cost more than they save.
GAPS = ".gaps.jsonl"  # Not a stream's name: those begin with a letter or digit.
SHORTER = "the sender's file became shorter"
"""Cause of a gap: the file was removed or cut while an attempt wrote to it."""


@dataclass(frozen=True)
class Gap:
    """Bytes of a stream that are lost."""

    name: str
    offset: int  # Where the stream ends, or ended when the gap was recorded.
    expected: int  # Where it should have ended, as far as was known.
    cause: str
    at: float

    @property
    def shorter(self) -> bool:
        """Whether its sender's file became shorter, so that what was written to it is lost."""
        return self.cause == SHORTER

    @property
    def text(self) -> str:
        """What is lost, in words."""
        if self.shorter:
            sizes = f"{self.offset:,} of {self.expected:,} bytes"
            return f"{self.name} became shorter, {sizes}: what was written to it later is lost"
        return f"bytes {self.offset:,} to {self.expected:,} of {self.name} are lost: {self.cause}"


def check_name(name: str) -> str:
    """Check that ``name`` is a stream's name: a plain file name without folders."""
    if not is_name(name):
        raise UserError(
            f"{name[:100]!r} is not a stream's name.",
            hint="Letters, digits, dots, dashes and underscores, e.g. events.jsonl, rank-0.log.",
        )
    return name


def is_name(name: str) -> bool:
    return _NAME.fullmatch(name) is not None and ".." not in name


SCORES = "scores.jsonl"
"""Of the server itself: what evaluations of the attempt's checkpoints have reported."""


def is_events(name: str) -> bool:
    return name in {layout.EVENTS, SCORES}


class Replica:
    def __init__(self, root: Path) -> None:
        self.root = root
        root.mkdir(mode=0o700, exist_ok=True)

    def path(self, attempt_id: str, name: str) -> Path:
        return self.folder(attempt_id) / check_name(name)

    def folder(self, attempt_id: str) -> Path:
        if split_attempt_id(attempt_id) is None:
            raise NotFound(f"There is no attempt {attempt_id[:100]!r}.")
        return self.root / attempt_id

    def files(self) -> Iterator[tuple[str, dict[str, int]]]:
        """List each attempt's streams with the sizes of their files, in order of attempt id."""
        folders = os.scandir(self.root)
        for folder in sorted(folders, key=lambda one: split_attempt_id(one.name) or (one.name, 0)):
            if not folder.is_dir(follow_symlinks=False) or split_attempt_id(folder.name) is None:
                continue
            with os.scandir(folder.path) as entries:
                sizes = {
                    entry.name: entry.stat(follow_symlinks=False).st_size
                    for entry in entries
                    if is_name(entry.name) and entry.is_file(follow_symlinks=False)
                }
            yield folder.name, dict(sorted(sizes.items()))

    def runs(self) -> set[str]:
        """Return the ids of the runs that have a folder. Lists the root once, and nothing in it."""
        with os.scandir(self.root) as entries:
            found = [split_attempt_id(entry.name) for entry in entries]
        return {attempt[0] for attempt in found if attempt is not None}

    def stored_bytes(self, attempt_id: str) -> int:
        """Return the size of the attempt's files; 0 where it has no folder."""
        try:
            with os.scandir(self.folder(attempt_id)) as entries:
                return sum(entry.stat().st_size for entry in entries if entry.is_file())
        except FileNotFoundError:
            return 0

    def remove(self, attempt_id: str) -> None:
        """Remove the attempt's folder, if there is one; ``fsync_folder`` makes it durable."""
        folder = self.folder(attempt_id)
        if folder.exists():
            shutil.rmtree(folder)

    def size(self, attempt_id: str, name: str) -> int:
        try:
            return self.path(attempt_id, name).stat().st_size
        except FileNotFoundError:
            return 0

    def read(self, attempt_id: str, name: str, offset: int, limit: int) -> bytes:
        """Read at most ``limit`` bytes from ``offset`` on; none where there is no file."""
        try:
            descriptor = os.open(self.path(attempt_id, name), os.O_RDONLY | os.O_NOFOLLOW)
        except FileNotFoundError:
            return b""
        except OSError as error:
            raise StoreUnavailable(f"{attempt_id}/{name}: {error.strerror}.") from error
        try:
            return os.pread(descriptor, limit, offset)
        finally:
            os.close(descriptor)

    def flush(self, attempt_id: str, name: str) -> None:
        """Flush a file and its name to disk, whoever wrote it."""
        path = self.path(attempt_id, name)
        descriptor = os.open(path, os.O_RDONLY | os.O_NOFOLLOW)
        try:
            os.fdatasync(descriptor)
        finally:
            os.close(descriptor)
        fsync_folder(path.parent)
        fsync_folder(self.root)

    def gaps(self, attempt_id: str) -> list[Gap]:
        try:
            lines = (self.folder(attempt_id) / GAPS).read_text("utf-8").splitlines()
        except FileNotFoundError:
            return []
        return [Gap(**json.loads(line)) for line in lines if line.endswith("}")]

    def note_gap(self, attempt_id: str, gap: Gap) -> None:
        folder = self.folder(attempt_id)
        folder.mkdir(mode=0o700, exist_ok=True)
        line = json.dumps(asdict(gap)) + "\n"
        descriptor = os.open(folder / GAPS, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
        try:
            os.write(descriptor, line.encode())
            os.fsync(descriptor)
        finally:
            os.close(descriptor)
        fsync_folder(folder)


class Writing:
    """The files of one group of appends: written, then flushed to disk together."""

    def __init__(self, replica: Replica, flushers: ThreadPoolExecutor) -> None:
        self._replica = replica
        self._flushers = flushers
        self._files: dict[tuple[str, str], int] = {}
        self._folders: set[Path] = set()

    def write(self, attempt_id: str, name: str, offset: int, data: bytes) -> None:
        descriptor = self._files.get((attempt_id, name))
        if descriptor is None:
            descriptor = self._open(attempt_id, name)
            self._files[attempt_id, name] = descriptor
        if not offset:
            # The file may be there already, from a group that failed before it was flushed.
            folder = self._replica.folder(attempt_id)
            self._folders |= {folder, folder.parent}
        view = memoryview(data)
        while view:
            written = os.pwrite(descriptor, view, offset)
            offset += written
            view = view[written:]

    def flush(self) -> None:
        """Flush the files to disk: what was written survives a power cut.

        Flushes at the same time share the disk's own commits, so many take little longer than one.
        """
        descriptors = list(self._files.values())
        parts = [descriptors[first::FLUSHERS] for first in range(min(FLUSHERS, len(descriptors)))]
        if len(parts) < _PARALLEL_FROM:
            _flush(descriptors)
        else:
            self._flush_together(parts)
        for folder in sorted(self._folders, reverse=True):
            fsync_folder(folder)

    def _flush_together(self, parts: Sequence[Sequence[int]]) -> None:
        begun: list[Future[None]] = []
        try:
            begun += (self._flushers.submit(_flush, part) for part in parts)
        finally:
            # After an error, too: a descriptor that is still being flushed must not be closed, for
            # its number may then be another file's.
            wait(begun)
        for one in begun:
            one.result()

    def close(self) -> None:
        for descriptor in self._files.values():
            os.close(descriptor)
        self._files.clear()

    def _open(self, attempt_id: str, name: str) -> int:
        path = self._replica.path(attempt_id, name)
        try:
            return os.open(path, os.O_RDWR | os.O_NOFOLLOW)
        except FileNotFoundError:
            pass
        path.parent.mkdir(mode=0o700, exist_ok=True)
        return os.open(path, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW, 0o600)


def _flush(descriptors: Sequence[int]) -> None:
    for descriptor in descriptors:
        os.fdatasync(descriptor)
