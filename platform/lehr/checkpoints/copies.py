"""Copy, fetch, verify and remove checkpoints, between a folder and any fsspec storage.

A copy has the same files as the folder. ``manifest.json`` is written last and removed first, so a
copy with a manifest is complete, wherever a process died.
"""

from __future__ import annotations

import contextlib
import hashlib
import io
import os
import secrets
import shutil
from collections.abc import Callable, Collection, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any, Self

from lehr.base.stopped import Stopped, never
from lehr.checkpoints.copy_files import PIECE, FolderFiles, files_at, folder_below
from lehr_trainer.contract import layout
from lehr_trainer.contract.manifest import FileEntry, Manifest, parse_manifest, read_limited
from lehr_trainer.errors import BadCheckpoint
from lehr_trainer.files import open_regular

AT_ONCE = 4  # Files that are copied in parallel.


@dataclass(frozen=True)
class Known:
    """A complete checkpoint, as described by its manifest."""

    manifest: Manifest
    content: bytes  # manifest.json.
    digest: str  # Its SHA-256, which covers everything that it lists.


class Folder:
    """A checkpoint in a folder of this machine, its files held open.

    Open files can be read to their end even when retention removes them meanwhile. Neither the
    files nor, with ``root``, the folders below it may be links.

    Args:
        path: the folder.
        root: what holds the folders that workers make; all of ``path`` is trusted without it.
        hold: the files to hold open; all by default. The others are only looked at.

    Raises:
        BadCheckpoint: it is incomplete.
    """

    def __init__(
        self, path: Path, *, root: Path | None = None, hold: Collection[str] | None = None
    ) -> None:
        self.path = path
        self._files: dict[str, IO[bytes]] = {}
        root = path if root is None else root
        with ExitStack() as held:
            try:
                folder = held.enter_context(folder_below(root, path.relative_to(root).parts))
            except FileNotFoundError:
                raise BadCheckpoint(_no_manifest(path)) from None
            except OSError as error:
                raise BadCheckpoint(f"{path} cannot be read: {error.strerror}") from error
            with self._open(folder, layout.MANIFEST) as file:
                content = read_limited(file, str(path / layout.MANIFEST))
            self.known = _known(content, str(path))
            for name, entry in self.known.manifest.files.items():
                with ExitStack() as one:
                    file = one.enter_context(self._open(folder, name))
                    size = os.fstat(file.fileno()).st_size
                    if size != entry.size:
                        raise BadCheckpoint(
                            f"{path / name} has {size:,} bytes, but its manifest has {entry.size:,}"
                        )
                    if hold is None or name in hold:
                        self._files[name] = file
                        held.push(one.pop_all())
            self._files[layout.MANIFEST] = io.BytesIO(content)
            self._held = held.pop_all()

    def _open(self, folder: int, name: str) -> IO[bytes]:
        path = self.path / name
        try:
            return open_regular(name, dir_fd=folder)
        except FileNotFoundError:
            missing = name == layout.MANIFEST
            raise BadCheckpoint(
                _no_manifest(self.path) if missing else f"{path} is missing"
            ) from None
        except OSError as error:
            raise BadCheckpoint(f"{path} cannot be read: {error.strerror}") from error

    def read(self, name: str, first: int = 0, size: int | None = None) -> Iterator[bytes]:
        """Yield a file's bytes from ``first`` on, ``size`` of them, in pieces."""
        yield from _pieces(self._files[name], first, size)

    def close(self) -> None:
        self._held.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


class Copy:
    """A checkpoint in storage, by its URL. Every method queries the storage again.

    Raises whatever the storage's client raises when it cannot be reached.
    """

    def __init__(self, url: str, files: Any = None) -> None:
        self.url = url
        self._files = files or files_at(url)
        self._held = ExitStack()
        self._open: dict[str, IO[bytes]] = {}

    def hold(self, names: Collection[str]) -> None:
        """Open these files, so that one that cannot be read is noticed before it is sent."""
        for name in names:
            self._open[name] = self._held.enter_context(self._files.open(name))

    def close(self) -> None:
        self._held.close()

    def known(self) -> Known | None:
        """Return the contents of its manifest; None without a manifest: then it is no copy.

        Raises:
            BadCheckpoint: the manifest is invalid.
        """
        try:
            with self._files.open(layout.MANIFEST) as file:
                return _known(read_limited(file, f"{self.url}/{layout.MANIFEST}"), self.url)
        except FileNotFoundError:
            return None

    def read(self, name: str, first: int = 0, size: int | None = None) -> Iterator[bytes]:
        """Yield a file's bytes from ``first`` on, ``size`` of them, in pieces."""
        held = self._open.get(name)
        with self._files.open(name) if held is None else contextlib.nullcontext(held) as file:
            yield from _pieces(file, first, size)

    def write(self, folder: Folder) -> None:
        """Copy ``folder`` here; incomplete files are written again.

        Raises:
            BadCheckpoint: the folder's files do not match its manifest.
        """
        _for_each_file(folder.known, lambda name, entry: self._write_file(folder, name, entry))
        self._files.publish(layout.MANIFEST, folder.known.content)

    def _write_file(self, folder: Folder, name: str, entry: FileEntry) -> None:
        hashed = hashlib.sha256()

        def pieces() -> Iterator[bytes]:
            for piece in folder.read(name):
                hashed.update(piece)
                yield piece

        size = self._files.write(name, pieces())
        if hashed.hexdigest() != entry.sha256:
            raise BadCheckpoint(
                f"{folder.path / name} is damaged: its SHA-256 is {hashed.hexdigest()[:12]}, but "
                f"its manifest has {entry.sha256[:12]}; it is not copied"
            )
        if size != entry.size:
            raise OSError(f"{self.url}/{name} has {size:,} bytes of {entry.size:,}")

    def fetch(self, folder: Path) -> Known:
        """Copy it to ``folder``, atomically, checking every digest.

        Raises:
            BadCheckpoint: there is no copy, or its files do not match its manifest.
        """
        if (found := self.known()) is None:
            raise BadCheckpoint(_no_manifest(self.url))
        # A unique name: two nodes may fetch to one shared folder.
        draft = folder.with_name(f"{folder.name}.{secrets.token_hex(4)}.tmp")
        draft.mkdir(parents=True)
        try:
            _for_each_file(found, lambda name, entry: self._fetch_file(draft / name, name, entry))
            _write(draft / layout.MANIFEST, [found.content])
            if whole(folder) is None:
                shutil.rmtree(folder, ignore_errors=True)
                with contextlib.suppress(OSError):  # Another node was faster.
                    draft.rename(folder)
            if whole(folder) is None:
                raise BadCheckpoint(f"{folder} cannot be created")
        finally:
            shutil.rmtree(draft, ignore_errors=True)
        return found

    def _fetch_file(self, path: Path, name: str, entry: FileEntry) -> None:
        digest, size = _write(path, self._up_to_end(name, entry))
        _compare(f"{self.url}/{name}", entry, digest, size)

    def _up_to_end(self, name: str, entry: FileEntry) -> Iterator[bytes]:
        """Yield a file's bytes, one more than it should have at most: it may have no end."""
        yield from self.read(name, 0, entry.size + 1)

    def verify(self, stopped: Stopped = never) -> Known:
        """Read all of it and check every digest.

        Raises:
            BadCheckpoint: the first mismatch, or ``stopped``.
        """
        if (found := self.known()) is None:
            raise BadCheckpoint(_no_manifest(self.url))

        def check(name: str, entry: FileEntry) -> None:
            try:
                digest, size = digest_of(self._up_to_end(name, entry), stopped)
            except FileNotFoundError:
                raise BadCheckpoint(f"{self.url}/{name} is missing") from None
            _compare(f"{self.url}/{name}", entry, digest, size)

        _for_each_file(found, check)
        return found

    def remove(self) -> None:
        """Remove the manifest first, so that a partial removal leaves no valid copy. May be
        repeated.
        """
        self._files.remove(layout.MANIFEST)


def _for_each_file(known: Known, act: Callable[[str, FileEntry], None]) -> None:
    """Call ``act`` for the files of a checkpoint, ``AT_ONCE`` of them in parallel."""
    with ThreadPoolExecutor(max_workers=AT_ONCE) as pool:
        list(pool.map(lambda file: act(*file), known.manifest.files.items()))


def whole(folder: Path) -> Known | None:
    """Return a folder's manifest if all files exist with the right size, else None."""
    try:
        with Folder(folder, hold=()) as held:
            return held.known
    except BadCheckpoint:
        return None


def verify_folder(folder: Path, *, root: Path, stopped: Stopped = never) -> Known:
    """Read all of a folder and check every digest.

    Raises:
        BadCheckpoint: the first mismatch, or ``stopped``.
    """
    return Copy(str(folder), FolderFiles(folder, root=root)).verify(stopped)


def digest_of(pieces: Iterator[bytes], stopped: Stopped = never) -> tuple[str, int]:
    hashed, size = hashlib.sha256(), 0
    for piece in pieces:
        if stopped():
            raise BadCheckpoint("it was not read to its end: nobody waits for that any more")
        hashed.update(piece)
        size += len(piece)
    return hashed.hexdigest(), size


def _pieces(file: Any, first: int, size: int | None) -> Iterator[bytes]:
    file.seek(first)
    left = size
    while left is None or left > 0:
        piece = file.read(PIECE if left is None else min(PIECE, left))
        if not piece:
            return
        left = None if left is None else left - len(piece)
        yield piece


def _known(content: bytes, where: str) -> Known:
    return Known(parse_manifest(content, where), content, hashlib.sha256(content).hexdigest())


def _compare(where: str, entry: FileEntry, digest: str, size: int) -> None:
    if size != entry.size:
        raise BadCheckpoint(f"{where} has {size:,} bytes, but its manifest has {entry.size:,}")
    if digest != entry.sha256:
        raise BadCheckpoint(
            f"{where} is damaged: its SHA-256 is {digest[:12]}, but its manifest has "
            f"{entry.sha256[:12]}"
        )


def _no_manifest(where: str | Path) -> str:
    return f"{where} has no {layout.MANIFEST}, so it is incomplete"


def _write(path: Path, pieces: Any) -> tuple[str, int]:
    """Create a file and fsync it."""
    hashed, size = hashlib.sha256(), 0
    with path.open("xb") as file:
        for piece in pieces:
            hashed.update(piece)
            size += len(piece)
            file.write(piece)
        file.flush()
        os.fsync(file.fileno())
    return hashed.hexdigest(), size
