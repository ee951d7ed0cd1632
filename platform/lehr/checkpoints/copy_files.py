"""The files of one copy of a checkpoint: in a folder that machines share, or in storage of fsspec.

Every worker that sees a shared folder can write to it, so no link in it is followed, and nothing
but regular files is opened.
"""

from __future__ import annotations

import contextlib
import os
import secrets
import shutil
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import IO, Any

from lehr.specs.storage_url import open_place
from lehr_trainer.files import open_regular

PIECE = 8 << 20
_BELOW_THE_PLACE = 4  # Parts of a copy's path that workers make: RUN/attempt-N/checkpoints/step-N.
_FOLDER = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC


def files_at(url: str) -> FolderFiles | StorageFiles:
    """Return the files of the copy at ``url``. Sends no request yet.

    Their methods raise FileNotFoundError for what is missing, else whatever the storage's client
    raises.

    Raises:
        UserError: a package for this storage is not installed.
    """
    if url.startswith("file://"):
        path = Path(url.removeprefix("file://"))
        return FolderFiles(path, root=Path(*path.parts[:-_BELOW_THE_PLACE]))
    return StorageFiles(url)


@contextlib.contextmanager
def folder_below(root: Path, parts: Iterable[str], *, make: bool = False) -> Iterator[int]:
    """Yield a descriptor of a folder below ``root``, whose own path may have links.

    Raises:
        OSError: a part is missing, a link, or no folder.
    """
    here = os.open(root, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        for part in parts:
            if make:
                with contextlib.suppress(FileExistsError):
                    os.mkdir(part, dir_fd=here)
            below = os.open(part, _FOLDER, dir_fd=here)
            os.close(here)
            here = below
        yield here
    finally:
        os.close(here)


class FolderFiles:
    """Files of the folder ``path``; what workers make is below ``root``."""

    def __init__(self, path: Path, *, root: Path) -> None:
        self._root = root
        self._parts = path.relative_to(root).parts

    @contextlib.contextmanager
    def open(self, name: str) -> Iterator[IO[bytes]]:
        with (
            folder_below(self._root, self._parts) as folder,
            open_regular(name, dir_fd=folder) as file,
        ):
            yield file

    def write(self, name: str, pieces: Iterable[bytes]) -> int:
        """Create or replace a file; return its size as the storage has it."""
        self._root.mkdir(parents=True, exist_ok=True)
        draft = f"{name}.{secrets.token_hex(4)}.tmp"
        flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
        with folder_below(self._root, self._parts, make=True) as folder:
            try:
                with os.fdopen(os.open(draft, flags, 0o666, dir_fd=folder), "wb") as file:
                    for piece in pieces:
                        file.write(piece)
                    file.flush()
                    os.fsync(file.fileno())
                    size = os.fstat(file.fileno()).st_size
                os.rename(draft, name, src_dir_fd=folder, dst_dir_fd=folder)
                os.fsync(folder)
            except BaseException:
                with contextlib.suppress(OSError):
                    os.unlink(draft, dir_fd=folder)
                raise
        return size

    def publish(self, name: str, content: bytes) -> None:
        """Create or replace a file so that it appears complete."""
        self.write(name, [content])

    def remove(self, first: str) -> None:
        """Remove all, the file ``first`` before the others. May be repeated."""
        *above, last = self._parts
        gone = contextlib.suppress(FileNotFoundError)
        with gone, folder_below(self._root, self._parts) as folder:
            os.unlink(first, dir_fd=folder)
        with gone, folder_below(self._root, above) as folder:
            shutil.rmtree(last, dir_fd=folder)


class StorageFiles:
    def __init__(self, url: str) -> None:
        self._fs, self._path = open_place(url)
        self._folders = url.startswith("sftp://")

    def open(self, name: str) -> contextlib.AbstractContextManager[IO[bytes]]:
        file: Any = self._fs.open(self._at(name), "rb", block_size=PIECE)
        return contextlib.closing(file)

    def write(self, name: str, pieces: Iterable[bytes]) -> int:
        if self._folders:
            self._fs.makedirs(self._path, exist_ok=True)
        with self._fs.open(self._at(name), "wb", block_size=4 * PIECE) as file:
            for piece in pieces:
                file.write(piece)
        return int(self._fs.info(self._at(name))["size"])

    def publish(self, name: str, content: bytes) -> None:
        path = self._at(name)
        if not self._folders:
            self._fs.pipe_file(path, content)  # An object appears only when complete.
            return
        self._fs.pipe_file(f"{path}.tmp", content)
        self._fs.mv(f"{path}.tmp", path)

    def remove(self, first: str) -> None:
        with contextlib.suppress(FileNotFoundError):
            self._fs.rm_file(self._at(first))
        with contextlib.suppress(FileNotFoundError):
            self._fs.rm(self._path, recursive=True)

    def _at(self, name: str) -> str:
        return f"{self._path}/{name}"
