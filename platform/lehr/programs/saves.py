"""Checkpoints of a program: copies of what it saved, each with a manifest, as Lehr's own are."""

from __future__ import annotations

import errno
import hashlib
import os
import shutil
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import quote, unquote

from lehr.programs.environment import versions
from lehr_trainer.contract import layout
from lehr_trainer.contract.manifest import (
    MOST_FILES,
    FileEntry,
    Manifest,
    is_plain,
    read_manifest,
)
from lehr_trainer.errors import BadCheckpoint
from lehr_trainer.files import fsync_folder

_PIECE = 1 << 20
_SETTLE_S = 1.0
"""Seconds without a change after which a declared file counts as completely written."""

State = dict[str, tuple[int, int]]
"""Size and time of change of each file, by its path below the working folder."""


@dataclass(frozen=True)
class ProgramSave:
    """What a program has saved as one checkpoint."""

    files: State
    path: str | None
    """The file or folder, below the working folder; None if there are several."""


class StillChanging(Exception):
    """A file changed before its copy was complete; the message is its path."""


@dataclass(frozen=True)
class Kept:
    folder: Path
    manifest: Manifest
    digest: str
    seconds: float


def state_of(base: Path, paths: list[Path]) -> State:
    """Return the state of these files, and of all files in these folders."""
    found: State = {}
    for path in paths:
        for file in _files(path):
            status = file.stat()
            found[file.relative_to(base).as_posix()] = (status.st_size, status.st_mtime_ns)
    return found


def saved_in(base: Path, paths: list[Path]) -> ProgramSave:
    """Return the files at these paths."""
    states = {path: found for path in paths if (found := state_of(base, [path]))}
    only = next(iter(states)).relative_to(base).as_posix() if len(states) == 1 else None
    return ProgramSave(
        {name: one for found in states.values() for name, one in found.items()}, only
    )


def _files(path: Path) -> Iterator[Path]:
    if path.is_dir():
        yield from (file for file in sorted(path.rglob("*")) if file.is_file())
    elif path.is_file():
        yield path


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
    draft = folder.with_name(f"{folder.name}.tmp")
    shutil.rmtree(draft, ignore_errors=True)
    draft.mkdir(parents=True)
    try:
        files: dict[str, FileEntry] = {}
        for name, expected in saved.files.items():
            files[_flat(name)] = _copy_unchanged(base, name, draft / _flat(name), expected)
        code = layout.code_digest()
        manifest = Manifest(
            step=step,
            tokens=tokens,
            reason=reason,
            code=code,
            versions=versions(),
            path=saved.path,
            files=files,
        )
        listing = manifest.model_dump_json(indent=1).encode()
        with (draft / layout.MANIFEST).open("wb") as output:
            output.write(listing)
            output.flush()
            os.fsync(output.fileno())
        fsync_folder(draft)
        draft.rename(folder)
        fsync_folder(folder.parent)
    except BaseException:
        shutil.rmtree(draft, ignore_errors=True)
        raise
    digest = hashlib.sha256(listing).hexdigest()
    return Kept(folder, manifest, digest, time.monotonic() - began)


def _check_limits(saved: ProgramSave) -> None:
    if len(saved.files) > MOST_FILES:
        number = len(saved.files)
        raise OSError(errno.EFBIG, f"it has {number:,} files; the limit is {MOST_FILES:,}")
    for name in saved.files:
        if name == layout.MANIFEST:
            raise OSError(errno.EINVAL, "Lehr's own list of files has this name", name)
        if not is_plain(_flat(name)):
            raise OSError(errno.ENAMETOOLONG, "the path of a file is too long", name)


def _copy_unchanged(base: Path, name: str, target: Path, expected: tuple[int, int]) -> FileEntry:
    try:
        entry = _copy(base / name, target)
        status = (base / name).stat()
    except FileNotFoundError:
        raise StillChanging(name) from None
    if (status.st_size, status.st_mtime_ns) != expected:
        raise StillChanging(name)
    return entry


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


def _copy(source: Path, target: Path) -> FileEntry:
    digest, size = hashlib.sha256(), 0
    target.unlink(missing_ok=True)
    with source.open("rb") as read, target.open("xb") as write:
        while piece := read.read(_PIECE):
            digest.update(piece)
            size += len(piece)
            write.write(piece)
        write.flush()
        os.fsync(write.fileno())
    return FileEntry(size=size, sha256=digest.hexdigest())


class Declared:
    """The files and folders that a spec declares as what the program saves.

    ``newest``: only the one that changed last counts.
    """

    def __init__(self, base: Path, patterns: list[str], *, newest: bool = False) -> None:
        self._base, self._patterns, self._newest = base, patterns, newest
        self._kept = self.saved()
        self._seen: tuple[ProgramSave, float] = (self._kept, 0.0)

    def saved(self) -> ProgramSave:
        try:
            paths = [p for pattern in self._patterns for p in sorted(self._base.glob(pattern))]
            if not self._newest:
                return saved_in(self._base, paths)
            each = [found for path in paths if (found := saved_in(self._base, [path])).files]
            return max(each, key=_changed, default=_NOTHING)
        except OSError:  # It is being replaced.
            return _NOTHING

    def settled(self, *, ended: bool = False) -> ProgramSave | None:
        """Return what is saved if it is new and has settled; ``ended``: nothing writes any more."""
        if not self._patterns:
            return None
        now, saved = time.monotonic(), self.saved()
        if saved.files != self._seen[0].files:
            self._seen = (saved, now)
        if not saved.files or saved.files == self._kept.files:
            return None
        return saved if ended or now - self._seen[1] >= _SETTLE_S else None

    def note_kept(self, saved: ProgramSave) -> None:
        self._kept = saved


_NOTHING = ProgramSave({}, None)


def _changed(saved: ProgramSave) -> int:
    return max(changed_ns for _, changed_ns in saved.files.values())
