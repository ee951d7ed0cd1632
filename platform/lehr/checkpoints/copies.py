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
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any, Self

from lehr.specs.storage_url import open_place
from lehr_trainer.contract import layout
from lehr_trainer.contract.manifest import FileEntry, Manifest, parse_manifest
from lehr_trainer.errors import BadCheckpoint

PIECE = 8 << 20
AT_ONCE = 4
"""Files that are copied in parallel."""
_FOLDERS = ("file://", "sftp://")


@dataclass(frozen=True)
class Known:
    """A complete checkpoint, as described by its manifest."""

    manifest: Manifest
    digest: str
    """SHA-256 of manifest.json, which covers everything that it lists."""


class Folder:
    """A checkpoint in a folder of this machine, its files held open.

    Open files can be read to their end even when retention removes them meanwhile.

    Raises:
        BadCheckpoint: it is incomplete.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self._files: dict[str, IO[bytes]] = {}
        with ExitStack() as held:
            content = held.enter_context(_open(path / layout.MANIFEST)).read()
            self.content = content
            """manifest.json."""
            self.known = _known(content, str(path))
            for name, entry in self.known.manifest.files.items():
                file = held.enter_context(_open(path / name))
                size = os.fstat(file.fileno()).st_size
                if size != entry.size:
                    raise BadCheckpoint(
                        f"{path / name} has {size:,} bytes, but its manifest has {entry.size:,}"
                    )
                self._files[name] = file
            self._files[layout.MANIFEST] = io.BytesIO(content)
            self._held = held.pop_all()

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

    def __init__(self, url: str) -> None:
        self.url = url
        self._fs, self._path = open_place(url)

    def close(self) -> None:
        """Do nothing: nothing is held open."""

    def known(self) -> Known | None:
        """Return the contents of its manifest; None without a manifest: then it is no copy.

        Raises:
            BadCheckpoint: the manifest is invalid.
        """
        try:
            content = self._fs.cat_file(self._at(layout.MANIFEST))
        except FileNotFoundError:
            return None
        return _known(content, self.url)

    def read(self, name: str, first: int = 0, size: int | None = None) -> Iterator[bytes]:
        """Yield a file's bytes from ``first`` on, ``size`` of them, in pieces."""
        with self._fs.open(self._at(name), "rb", block_size=PIECE) as file:
            yield from _pieces(file, first, size)

    def write(self, folder: Folder) -> None:
        """Copy ``folder`` here; incomplete files are written again.

        Raises:
            BadCheckpoint: the folder's files do not match its manifest.
        """
        if self.url.startswith(_FOLDERS):
            self._fs.makedirs(self._path, exist_ok=True)
        files = folder.known.manifest.files
        with ThreadPoolExecutor(max_workers=AT_ONCE) as pool:
            for done in [
                pool.submit(self._write_file, folder, name, entry) for name, entry in files.items()
            ]:
                done.result()
        manifest = self._at(layout.MANIFEST)
        if not self.url.startswith(_FOLDERS):
            self._fs.pipe_file(manifest, folder.content)
            return
        # An object appears only when complete; a file gets its name at the end.
        self._fs.pipe_file(f"{manifest}.tmp", folder.content)
        self._fs.mv(f"{manifest}.tmp", manifest)

    def _write_file(self, folder: Folder, name: str, entry: FileEntry) -> None:
        hashed = hashlib.sha256()
        with self._fs.open(self._at(name), "wb", block_size=4 * PIECE) as file:
            for piece in folder.read(name):
                hashed.update(piece)
                file.write(piece)
        if hashed.hexdigest() != entry.sha256:
            raise BadCheckpoint(
                f"{folder.path / name} is damaged: its SHA-256 is {hashed.hexdigest()[:12]}, but "
                f"its manifest has {entry.sha256[:12]}; it is not copied"
            )
        size = int(self._fs.info(self._at(name))["size"])
        if size != entry.size:
            raise OSError(f"{self.url}/{name} has {size:,} bytes of {entry.size:,}")

    def fetch(self, folder: Path) -> Known:
        """Copy it to ``folder``, atomically, checking every digest.

        Raises:
            BadCheckpoint: there is no copy, or its files do not match its manifest.
        """
        found = self.known()
        if found is None:
            raise BadCheckpoint(f"{self.url} has no {layout.MANIFEST}, so it is incomplete")
        # A unique name: two nodes may fetch to one shared folder.
        draft = folder.with_name(f"{folder.name}.{secrets.token_hex(4)}.tmp")
        draft.mkdir(parents=True)
        try:
            with ThreadPoolExecutor(max_workers=AT_ONCE) as pool:
                for done in [
                    pool.submit(self._fetch_file, draft / name, name, entry)
                    for name, entry in found.manifest.files.items()
                ]:
                    done.result()
            _write(draft / layout.MANIFEST, [self._fs.cat_file(self._at(layout.MANIFEST))])
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
        digest, size = _write(path, self.read(name))
        _compare(f"{self.url}/{name}", entry, digest, size)

    def verify(self) -> Known:
        """Read all of it and check every digest.

        Raises:
            BadCheckpoint: the first mismatch.
        """
        found = self.known()
        if found is None:
            raise BadCheckpoint(f"{self.url} has no {layout.MANIFEST}, so it is incomplete")

        def check(name: str, entry: FileEntry) -> None:
            try:
                digest, size = digest_of(self.read(name))
            except FileNotFoundError:
                raise BadCheckpoint(f"{self.url}/{name} is missing") from None
            _compare(f"{self.url}/{name}", entry, digest, size)

        with ThreadPoolExecutor(max_workers=AT_ONCE) as pool:
            for done in [
                pool.submit(check, name, entry) for name, entry in found.manifest.files.items()
            ]:
                done.result()
        return found

    def remove(self) -> None:
        """Remove the manifest first, so that a partial removal leaves no valid copy. May be
        repeated.
        """
        with contextlib.suppress(FileNotFoundError):
            self._fs.rm_file(self._at(layout.MANIFEST))
        with contextlib.suppress(FileNotFoundError):
            self._fs.rm(self._path, recursive=True)

    def _at(self, name: str) -> str:
        return f"{self._path}/{name}"


def whole(folder: Path) -> Known | None:
    """Return a folder's manifest if all files exist with the right size, else None."""
    try:
        with Folder(folder) as held:
            return held.known
    except BadCheckpoint:
        return None


def verify_folder(folder: Path) -> Known:
    """Read all of a folder and check every digest.

    Raises:
        BadCheckpoint: the first mismatch.
    """
    with Folder(folder) as held:
        for name, entry in held.known.manifest.files.items():
            digest, size = digest_of(held.read(name))
            _compare(str(folder / name), entry, digest, size)
        return held.known


def digest_of(pieces: Iterator[bytes]) -> tuple[str, int]:
    hashed, size = hashlib.sha256(), 0
    for piece in pieces:
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
    return Known(parse_manifest(content, where), hashlib.sha256(content).hexdigest())


def _compare(where: str, entry: FileEntry, digest: str, size: int) -> None:
    if size != entry.size:
        raise BadCheckpoint(f"{where} has {size:,} bytes, but its manifest has {entry.size:,}")
    if digest != entry.sha256:
        raise BadCheckpoint(
            f"{where} is damaged: its SHA-256 is {digest[:12]}, but its manifest has "
            f"{entry.sha256[:12]}"
        )


def _open(path: Path) -> IO[bytes]:
    """Open a regular file for reading; never follow a link, whoever created it."""
    try:
        return os.fdopen(os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC), "rb")
    except FileNotFoundError:
        where = path.parent if path.name == layout.MANIFEST else path
        what = f"has no {layout.MANIFEST}, so it is incomplete"
        what = what if path.name == layout.MANIFEST else "is missing"
        raise BadCheckpoint(f"{where} {what}") from None
    except OSError as error:
        raise BadCheckpoint(f"{path} cannot be read: {error.strerror}") from error


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
