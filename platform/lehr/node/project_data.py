"""Data of a project that an attempt reads where they are, by links. Standard library only."""

import hashlib
import os
from collections.abc import Container, Iterator

from lehr.node import procfs

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
