"""An attempt's own copy of the project of its capsule. Standard library only.

A node unpacks a capsule once for all attempts. A program may write beside its own files, so it runs
in a copy, with links to data that are not in the capsule. When the attempt has ended, the links and
the files that it left as they were are removed again: the capsule has them, and a sweep would keep
one copy for each trial.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
from collections.abc import Container, Iterator

from lehr.base import procfs
from lehr.code import code_cache

INDEX = ".project.json"  # File of the attempt: folders of the copy, and size and time of its files.
_BYTECODE = ".pyc"


def make(project: str, folder: str, index: str) -> None:
    """Copy the project into ``folder``, and list the copies in the file ``index``.

    Raises:
        OSError: a file cannot be read or written.
    """
    files: dict[str, list[int]] = {}
    folders: list[str] = []
    pending = [""]
    while pending:
        inside = pending.pop()
        for entry in os.scandir(os.path.join(project, inside)):
            name = os.path.join(inside, entry.name)
            own = os.path.join(folder, name)
            if entry.is_dir() and entry.name == code_cache.BYTECODE:
                continue
            if entry.is_dir():
                os.makedirs(own, exist_ok=True)
                folders.append(name)
                pending.append(name)
            else:
                files[name] = _copy(entry.path, own)
    procfs.write_json(index, {"folders": folders, "files": files})


def link_data(root: str, names: list[str], folder: str, index: str) -> dict[str, str]:
    """Link data of the project at ``root`` into ``folder``; return what they are now, by path.

    Raises:
        OSError: some are missing; ``filename`` shows which.
    """
    listed = procfs.read_json(index) or {"folders": [], "files": {}}
    now = {name: described(root, name, listed["files"]) for name in names}
    for made in [made for name in names for made in link(root, name, folder)]:
        status = os.lstat(os.path.join(folder, made))
        listed["files"][made] = [status.st_size, status.st_mtime_ns]
    procfs.write_json(index, listed)
    return now


def _copy(source: str, target: str) -> list[int]:
    """Copy a file; the owner may write the copy. Return its size and time of change."""
    import shutil  # Not for the shim, which starts in milliseconds.

    with contextlib.suppress(FileNotFoundError):
        os.unlink(target)  # A copy that was cut short.
    shutil.copyfile(source, target)
    os.chmod(target, (os.stat(source).st_mode & 0o777) | 0o200)
    made = os.lstat(target)
    return [made.st_size, made.st_mtime_ns]


def remove_unchanged(folder: str, index: str) -> None:
    """Remove the copies that are as they were made, and folders that are empty without them."""
    listed = procfs.read_json(index)
    if not isinstance(listed, dict):
        return
    for name, made in listed["files"].items():
        path = os.path.join(folder, name)
        if _elsewhere(folder, os.path.dirname(name)):
            continue
        with contextlib.suppress(OSError):
            status = os.lstat(path)
            if [status.st_size, status.st_mtime_ns] == made:
                os.unlink(path)
    for name in [*sorted(listed["folders"], reverse=True), ""]:
        path = os.path.join(folder, name)
        if _elsewhere(folder, os.path.join(name, code_cache.BYTECODE)):
            continue
        _remove_bytecode(os.path.join(path, code_cache.BYTECODE))
        with contextlib.suppress(OSError):
            os.rmdir(path)


def _elsewhere(folder: str, name: str) -> bool:
    """Return whether the program has put a link where the copy had a folder: it may lead to files
    of somebody else.
    """
    own = os.path.join(os.path.realpath(folder), name)
    return os.path.realpath(own) != own.rstrip("/")


def _remove_bytecode(folder: str) -> None:
    with contextlib.suppress(OSError):
        for entry in os.scandir(folder):
            if entry.name.endswith(_BYTECODE):
                os.unlink(entry.path)
        os.rmdir(folder)


_BLOCK, _BLOCKS, _WHOLE = 64 << 10, 16, 1 << 20


def described(root: str, name: str, sent: Container[str]) -> str:
    """Return digest, number and size of the files at ``name`` below the project's ``root``.

    The digest is 64 bits of the SHA-256 over path, size and content of each file that the capsule
    has not ``sent``. Of a file larger than 1 MiB, 16 blocks of 64 KiB count, evenly spread from its
    begin to its end: 10 TB in 10,000 files take seconds. Another change of such a file is not seen.

    Raises:
        OSError: something is missing or cannot be read; ``filename`` shows what.
    """
    digest, count, total = hashlib.sha256(), 0, 0
    for path in _files(root, name):
        if path in sent:
            continue
        with procfs.open_regular(os.path.join(root, path), follow=True) as file:
            size = os.fstat(file.fileno()).st_size
            digest.update(f"{path}\0{size}\0".encode("utf-8", "surrogateescape"))
            length, last = (_BLOCK, size - _BLOCK) if size > _WHOLE else (_WHOLE, 0)
            for start in sorted({last * number // (_BLOCKS - 1) for number in range(_BLOCKS)}):
                digest.update(os.pread(file.fileno(), length, start))
        count, total = count + 1, total + size
    files = f"{count:,} file{'s' * (count != 1)}"
    # First what differs: tables cut long values.
    return f"sha256 {digest.hexdigest()[:16]}, {files}, {total:,} bytes"


def _files(root: str, name: str) -> Iterator[str]:
    """Yield the paths below ``root`` of all files at ``name``, in order; links are followed."""
    if not os.path.isdir(os.path.join(root, name)):
        yield name
        return
    for entry in _entries(root, name):
        yield from _files(root, entry)


def _entries(root: str, name: str) -> list[str]:
    entries = sorted(os.listdir(os.path.join(root, name)))
    return [f"{name}/{entry}" for entry in entries if entry != "__pycache__"]


def link(root: str, name: str, folder: str) -> list[str]:
    """Link ``name`` of the project into ``folder``; return the paths of the links below it.

    Files of the capsule stay: in a folder that has some, each other entry gets a link of its own.

    Raises:
        OSError: it is missing, or a link cannot be made; ``filename`` shows what.
    """
    source, own = os.path.join(root, name), os.path.join(folder, name)
    os.stat(source)
    if os.path.isdir(source) and os.path.isdir(own):
        return [made for entry in _entries(root, name) for made in link(root, entry, folder)]
    if os.path.lexists(own):
        return []
    os.makedirs(os.path.dirname(own), exist_ok=True)
    os.symlink(source, own)
    return [name]
