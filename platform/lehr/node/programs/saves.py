"""Checkpoints of a program: copies of what it saved, each with a manifest, as Lehr's own are."""

from __future__ import annotations

import contextlib
import errno
import fcntl
import hashlib
import json
import os
import shutil
import subprocess
import sys
import time
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import IO
from urllib.parse import quote, unquote

from lehr_log import files_of
from lehr_trainer.contract import layout
from lehr_trainer.contract.manifest import MOST_FILES, FileEntry, Manifest, is_plain, read_manifest
from lehr_trainer.errors import BadCheckpoint
from lehr_trainer.files import fsync_folder, open_regular, write_atomically
from lehr_trainer.runtime import installed
from lehr_trainer.runtime.installed import driver_version

_NAMED = 10  # Changed versions that are listed; the others are counted.


def interpreter() -> str:
    """Return the interpreter of the program: of its environment, if its spec names one."""
    return os.environ.get("LEHR_PYTHON") or sys.executable


@cache
def versions() -> dict[str, str]:
    """Return the versions of Python, CUDA, the driver and all distributions of a program."""
    driver = {"driver": driver_version()}
    if interpreter() == sys.executable:
        return installed.installed() | driver
    script = str(Path(installed.__file__).absolute())
    done = subprocess.run([interpreter(), "-P", script], capture_output=True, text=True, check=True)
    found: dict[str, str] = json.loads(done.stdout)
    return found | driver


def changes(before: Mapping[str, str], now: Mapping[str, str]) -> list[str]:
    """Return the versions that differ, as ``torch 2.12 -> 2.13``, the most important ones first.

    A distribution that was not installed before counts as unchanged.
    """
    first = ("python", "torch", "cuda", "driver", "numpy")
    names = sorted(before, key=lambda name: (name not in first, name))
    found = [
        f"{name} {before[name]} -> {now.get(name, 'none')}"
        for name in names
        if before[name] != now.get(name)
    ]
    more = len(found) - _NAMED
    return [*found[:_NAMED], f"{more} more"] if more > 0 else found


_PIECE = 1 << 20
_FICLONE = 0x40049409  # ioctl: let a file share all blocks of another one, until either is written.
_SETTLE_S = 1.0
"""Seconds without a change after which a declared file counts as completely written."""

State = dict[str, tuple[int, int]]
"""Size and time of change of each file, by its path below the working folder."""


@dataclass(frozen=True)
class ProgramSave:
    """What a program has saved as one checkpoint."""

    files: State
    path: str | None  # The file or folder, below the working folder; None if there are several.
    elsewhere: tuple[str, ...] = ()  # Links to folders whose files are kept under another path.


class StillChanging(Exception):
    """A file changed before its copy was complete; the message is its path."""


@dataclass(frozen=True)
class Kept:
    size_bytes: int
    digest: str
    seconds: float


def saved_in(base: Path, paths: list[Path], data: Collection[str] = ()) -> ProgramSave:
    """Return the files at these paths, and all files in these folders, without those of ``data``.

    Raises:
        OSError: one cannot be looked at, such as a link to a folder of another account.
    """
    files: State = {}
    sources: list[str] = []
    elsewhere: list[str] = []
    for path in paths:
        source = path.relative_to(base).as_posix()
        if _is_of(data, source):
            continue
        found, links = files_of(str(path), MOST_FILES)
        states = {
            (path / name).relative_to(base).as_posix(): _state(s) for name, s in found.items()
        }
        own = {name: state for name, state in states.items() if not _is_of(data, name)}
        sources += [source] if own else []
        elsewhere += [(path / name).relative_to(base).as_posix() for name in links]
        files |= own
    return ProgramSave(files, sources[0] if len(sources) == 1 else None, tuple(elsewhere))


def _is_of(data: Collection[str], name: str) -> bool:
    return any(name == one or name.startswith(f"{one}/") for one in data)


def keep(
    base: Path, saved: ProgramSave, folder: Path, *, step: int, tokens: int, reason: str
) -> Kept:
    """Copy the files of ``saved`` into the checkpoint ``folder``, atomically.

    Raises:
        StillChanging: one changed since its state was taken.
        OSError: it cannot be written, or no checkpoint can have these files.
    """
    began = time.monotonic()
    _check_limits(saved)
    draft, old = draft_of(folder), folder.with_suffix(".old")
    shutil.rmtree(draft, ignore_errors=True)
    draft.mkdir(parents=True)
    try:
        files: dict[str, FileEntry] = {}
        left = sum(size for size, _ in saved.files.values())
        for name, expected in saved.files.items():
            files[_flat(name)] = _copy_unchanged(base, name, draft / _flat(name), expected, left)
            left -= expected[0]
        manifest = Manifest(
            step=step,
            tokens=tokens,
            reason=reason,
            code=layout.code_digest(),
            versions=versions(),
            path=saved.path,
            files=files,
        )
        listing = manifest.model_dump_json(indent=1)
        write_atomically(draft / layout.MANIFEST, listing)
        # A program that logs no steps saves all its checkpoints at step 0: the newest one counts.
        shutil.rmtree(old, ignore_errors=True)
        with contextlib.suppress(FileNotFoundError):
            folder.rename(old)
        draft.rename(folder)
        fsync_folder(folder.parent)
        shutil.rmtree(old, ignore_errors=True)
    except BaseException:
        shutil.rmtree(draft, ignore_errors=True)
        with contextlib.suppress(OSError):  # The new one is in place.
            old.rename(folder)
        raise
    digest = hashlib.sha256(listing.encode()).hexdigest()
    return Kept(manifest.size_bytes, digest, time.monotonic() - began)


def draft_of(folder: Path) -> Path:
    """Return the folder in which a checkpoint is written until it is complete."""
    return folder.with_name(f"{folder.name}.tmp")


def _check_limits(saved: ProgramSave) -> None:
    if len(saved.files) > MOST_FILES:
        number = len(saved.files)
        raise OSError(errno.EFBIG, f"it has {number:,} files; the limit is {MOST_FILES:,}")
    for name in saved.files:
        if name == layout.MANIFEST:
            raise OSError(errno.EINVAL, "Lehr's own list of files has this name", name)
        if not is_plain(_flat(name)):
            raise OSError(errno.ENAMETOOLONG, "the path of a file is too long", name)


def _copy_unchanged(
    base: Path, name: str, target: Path, expected: tuple[int, int], left: int
) -> FileEntry:
    source = base / name
    with contextlib.suppress(FileNotFoundError):
        if _state(source.stat()) == expected:
            entry = _copy(source, target, follow=True, needed=left)
            if _state(source.stat()) == expected:
                return entry
    raise StillChanging(name)


def _state(status: os.stat_result) -> tuple[int, int]:
    return status.st_size, status.st_mtime_ns


def restore(folder: Path, base: Path) -> Manifest:
    """Put the files of a checkpoint where the program had them, below ``base``.

    Raises:
        BadCheckpoint: the checkpoint is incomplete or damaged.
    """
    manifest = read_manifest(folder)
    for flat, entry in manifest.files.items():
        target = base / unquote(flat)
        # The target may be a file of the project; the copy replaces it.
        if not target.parent.resolve().is_relative_to(base.resolve()):
            raise BadCheckpoint(f"{folder} has a file out of the working folder: {flat}")
        target.parent.mkdir(parents=True, exist_ok=True)
        try:
            found = _copy(folder / flat, target)
        except OSError as error:
            raise BadCheckpoint(f"{folder / flat} cannot be read: {error.strerror}") from error
        if found != entry:
            raise BadCheckpoint(f"{folder / flat} differs from its manifest")
    return manifest


def saved_path(manifest: Manifest, base: Path) -> str:
    """Return the file or folder that was saved, below ``base``.

    Without a path in the manifest: the only file, or the folder that all files share.
    """
    names = [unquote(flat) for flat in manifest.files]
    path = manifest.path
    if path is not None and all(name == path or name.startswith(f"{path}/") for name in names):
        return str(base / path)
    return os.path.commonpath([str(base / name) for name in names]) if names else str(base)


def _flat(name: str) -> str:
    return quote(name, safe="")


def _copy(source: Path, target: Path, *, follow: bool = False, needed: int = 0) -> FileEntry:
    """Copy a file at the size that it has now; copies share blocks where the file system can.

    Args:
        source: the file.
        target: its copy; a file of this name is replaced.
        follow: whether ``source`` may be a link.
        needed: bytes that must be free, unless blocks are shared.

    Raises:
        OSError: it cannot be read or written, is not a regular file, or there is no room.
    """
    digest, position = hashlib.sha256(), 0
    target.unlink(missing_ok=True)
    with open_regular(source, follow=follow) as read, target.open("x+b") as write:
        size = os.fstat(read.fileno()).st_size
        shared = _share(read, write)
        free = shutil.disk_usage(target.parent).free
        if not shared and needed > free:
            what = f"it takes {needed / 1e9:,.2f} GB, and {free / 1e9:,.2f} GB are free"
            raise OSError(errno.ENOSPC, what)
        content = write if shared else read
        while piece := content.read(min(_PIECE, size - position)):
            digest.update(piece)
            position += len(piece)
            if not shared:
                write.write(piece)
        write.flush()
        os.fsync(write.fileno())
    return FileEntry(size=position, sha256=digest.hexdigest())


def _share(source: IO[bytes], target: IO[bytes]) -> bool:
    try:
        fcntl.ioctl(target.fileno(), _FICLONE, source.fileno())
    except OSError:  # Of many kinds: the file systems differ, or cannot do it.
        return False
    return True


class Declared:
    """The files and folders that a spec declares as what the program saves.

    ``newest``: only the one that changed last counts.
    """

    def __init__(
        self, base: Path, patterns: list[str], *, newest: bool = False, data: Collection[str] = ()
    ) -> None:
        self._base, self._patterns, self._newest, self._data = base, patterns, newest, data
        self.restless = 0
        """How often they were written again, with their sizes, since one was kept."""
        self._kept = self.saved()
        self._seen: tuple[ProgramSave, float] = (self._kept, 0.0)

    def saved(self) -> ProgramSave:
        try:
            paths = [p for pattern in self._patterns for p in sorted(self._base.glob(pattern))]
            if not self._newest:
                return saved_in(self._base, paths, self._data)
            each = [saved_in(self._base, [path], self._data) for path in paths]
            return max((one for one in each if one.files), key=_changed, default=_NOTHING)
        except OSError:  # It is being replaced.
            return _NOTHING

    def settled(self, *, ended: bool = False) -> ProgramSave | None:
        """Return what is saved if it is new and has settled; ``ended``: nothing writes any more."""
        if not self._patterns:
            return None
        now, saved = time.monotonic(), self.saved()
        if saved.files != self._seen[0].files:
            # One that is being written grows.
            self.restless += _sizes(saved) == _sizes(self._seen[0])
            self._seen = (saved, now)
        if not saved.files or saved.files == self._kept.files:
            return None
        return saved if ended or now - self._seen[1] >= _SETTLE_S else None

    def note_kept(self, saved: ProgramSave) -> None:
        self._kept, self.restless = saved, 0


_NOTHING = ProgramSave({}, None)


def _sizes(saved: ProgramSave) -> list[int]:
    return [size for size, _ in saved.files.values()]


def _changed(saved: ProgramSave) -> int:
    return max(changed_ns for _, changed_ns in saved.files.values())
