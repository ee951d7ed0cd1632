"""The files of a checkpoint, as a program declares them and as Lehr copies them."""

from __future__ import annotations

import errno
import os

_NOT_THERE = {errno.ENOENT, errno.ELOOP, errno.ENOTDIR}


def files_of(path: str, most: int) -> tuple[dict[str, os.stat_result], list[str]]:
    """Return the files in a folder by their paths in it, or one file as ``.``.

    Links are followed, and each folder is entered once: at its own place if that is inside, else at
    the first link to it. The second value lists links to folders that were entered elsewhere.
    The search ends after ``most`` files.

    Raises:
        OSError: a file or folder cannot be read.
    """
    files: dict[str, os.stat_result] = {}
    if not os.path.isdir(path):
        return ({".": os.stat(path)} if os.path.isfile(path) else files), []
    seen: set[tuple[int, int]] = set()
    links, elsewhere = [""], []
    while links:
        link = links.pop(0)
        folders = [link]
        while folders and len(files) <= most:
            inside = folders.pop()
            status = os.stat(os.path.join(path, inside))
            if (status.st_dev, status.st_ino) in seen:
                elsewhere += [link] if inside == link else []
                continue
            seen.add((status.st_dev, status.st_ino))
            for entry in sorted(os.scandir(os.path.join(path, inside)), key=lambda e: e.name):
                name = os.path.join(inside, entry.name)
                try:
                    is_folder, is_file = entry.is_dir(), entry.is_file()
                except OSError as error:
                    if error.errno in _NOT_THERE:
                        continue
                    raise
                if is_folder:
                    (links if entry.is_symlink() else folders).append(name)
                elif is_file:
                    files[name] = entry.stat()
    return files, elsewhere
