"""Folders that a training fills: their size and their removal, however deep they are nested.

``shutil.rmtree``, ``os.walk`` and ``Path.rglob`` of Python 3.11 call themselves for each level, so
that a thousand folders, one in the other, end them with RecursionError.
"""

from __future__ import annotations

import errno
import os
import shutil
import uuid
from pathlib import Path

_FOLDER = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC


def tree_bytes(folder: Path) -> int:
    """Return the bytes of all files and links below a folder; what cannot be read counts nothing.

    Links are not followed, but the folder itself may be one.
    """
    size = 0
    waiting = [os.fspath(folder)]
    while waiting:
        try:
            with os.scandir(waiting.pop()) as entries:
                for entry in entries:
                    if entry.is_dir(follow_symlinks=False):
                        waiting.append(entry.path)
                    elif entry.is_file(follow_symlinks=False) or entry.is_symlink():
                        size += entry.stat(follow_symlinks=False).st_size
        except OSError:  # It is gone, or its path is longer than the system allows.
            continue
    return size


def remove_tree(folder: Path | str, *, dir_fd: int | None = None) -> None:
    """Remove a folder and all that is in it. ``dir_fd``: an open folder that it is in.

    Raises:
        OSError: a part cannot be removed.
    """
    try:
        shutil.rmtree(folder, dir_fd=dir_fd)
    except RecursionError:
        pass
    except OSError as error:
        if error.errno != errno.EMFILE:  # A descriptor is open for each level.
            raise
    else:
        return
    _flatten(folder, dir_fd)
    shutil.rmtree(folder, dir_fd=dir_fd)


def _flatten(folder: Path | str, dir_fd: int | None) -> None:
    """Move each folder below to the top, and remove the files: without recursion or long paths."""
    top = os.open(folder, _FOLDER, dir_fd=dir_fd)
    try:
        while nested := [entry.name for entry in _folders(top)]:
            for name in nested:
                inner = os.open(name, _FOLDER, dir_fd=top)
                try:
                    for entry in _folders(inner):
                        os.rename(entry.name, uuid.uuid4().hex, src_dir_fd=inner, dst_dir_fd=top)
                finally:
                    os.close(inner)
                shutil.rmtree(name, dir_fd=top)
    finally:
        os.close(top)


def _folders(descriptor: int) -> list[os.DirEntry[str]]:
    with os.scandir(descriptor) as entries:
        return [entry for entry in entries if entry.is_dir(follow_symlinks=False)]
