"""The archive of a capsule: write, check and unpack. Standard library only: nodes use it, too.

It is a plain tar without compression. Equal trees give equal bytes, so the SHA-256 of the bytes
names the content. Names are sorted, times and owners are zero. A plain tar cannot grow when it is
unpacked: a capsule takes no more space than its archive.
"""

from __future__ import annotations

import hashlib
import io
import os
import re
import tarfile
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from typing import IO, Any, NamedTuple, Self

DIGEST = re.compile(r"[0-9a-f]{64}")
LONGEST_NAME = 1_000
MOST_FILES = 50_000
LARGEST = 1 << 30  # Bytes of an archive, on the server and on a node.
PIECE = 1 << 20
_LONGEST_HEADER = 4 << 10
"""Bytes of an extended header, which tarfile keeps in memory. It holds a name."""
_EXTENDED = (
    *(tarfile.XHDTYPE, tarfile.SOLARIS_XHDTYPE),
    *(tarfile.GNUTYPE_LONGNAME, tarfile.GNUTYPE_LONGLINK),
)
TRAINER = "trainer"  # Folder of the archive with Lehr's own packages, as they were installed.
PROJECT = "project"  # Folder of the archive with the user's project.


class BadArchive(Exception):
    """The archive is damaged, or has an entry that a capsule cannot have."""


class SourceFile(NamedTuple):
    """A file to put into an archive."""

    name: str  # Its path in the archive, with slashes.
    path: str  # The file to read.
    executable: bool


class CapsuleMember(NamedTuple):
    """A file of an archive."""

    name: str
    size: int
    executable: bool
    sha256: str


def write(sources: Iterable[SourceFile], output: IO[bytes]) -> tuple[str, int]:
    """Write the archive of these files; return its digest and its size.

    Raises:
        OSError: a file cannot be read.
        BadArchive: a name is too long, appears twice, or a file changed while it was read.
    """
    counted = _Counted(output)
    with tarfile.open(fileobj=counted, mode="w|", format=tarfile.PAX_FORMAT) as archive:
        before = ""
        for source in sorted(sources):
            check_name(source.name)
            if source.name == before:
                raise BadArchive(f"{source.name} appears twice")
            before = source.name
            with open(source.path, "rb") as file:
                entry = tarfile.TarInfo(source.name)
                entry.size = os.fstat(file.fileno()).st_size
                entry.mode = 0o755 if source.executable else 0o644
                try:
                    archive.addfile(entry, file)
                except OSError as error:
                    if error.errno is None:
                        raise BadArchive(
                            f"{source.path} became shorter while it was read"
                        ) from None
                    raise
    return counted.digest.hexdigest(), counted.size


class _Counted(io.RawIOBase):
    """A file to write to that also computes the digest."""

    def __init__(self, output: IO[bytes]) -> None:
        self._output = output
        self.digest = hashlib.sha256()
        self.size = 0

    def write(self, data: Any) -> int:
        self.digest.update(data)
        self.size += len(data)
        return self._output.write(data)


def members(path: str | os.PathLike[str], *, digests: bool = True) -> list[CapsuleMember]:
    """Return the files of an archive after all checks; without ``digests`` it reads no content.

    Raises:
        BadArchive: an entry is not a plain file with a safe name, or the archive is damaged.
    """
    found = []
    for entry, content in _entries(path):
        digest = hashlib.sha256()
        while digests and (piece := content.read(PIECE)):
            digest.update(piece)
        sha256 = digest.hexdigest() if digests else ""
        found.append(CapsuleMember(entry.name, entry.size, bool(entry.mode & 0o100), sha256))
    return found


def read_files(
    path: str | os.PathLike[str], names: Iterable[str], *, most: int = -1
) -> dict[str, bytes]:
    """Return the content of some files of an archive, at most ``most`` bytes of each."""
    wanted = set(names)
    return {e.name: c.read(most) for e, c in _entries(path) if e.name in wanted}


def unpack(path: str | os.PathLike[str], folder: str, *, read_only: bool = False) -> int:
    """Unpack an archive into an empty folder; return the number of files.

    Raises:
        BadArchive: as ``members``; files before the bad entry may be there already.
        OSError: a file cannot be written.
    """
    count = 0
    made: set[str] = set()
    for entry, content in _entries(path):
        target = os.path.join(folder, *entry.name.split("/"))
        parent = os.path.dirname(target)
        if parent not in made:
            os.makedirs(parent, exist_ok=True)
            made.add(parent)
        mode = 0o755 if entry.mode & 0o100 else 0o644
        flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
        with open(os.open(target, flags, mode), "wb") as file:
            while piece := content.read(PIECE):
                file.write(piece)
        if read_only:
            os.chmod(target, mode & 0o555)
        count += 1
    return count


def _entries(path: str | os.PathLike[str]) -> Iterator[tuple[tarfile.TarInfo, _Content]]:
    seen: set[str] = set()
    folders: set[str] = set()
    total = 0
    with _damage_named(), tarfile.open(path, mode="r:", tarinfo=_Entry) as archive:
        for entry in archive:
            _check_entry(entry)
            if entry.name in seen or entry.name in folders:
                raise BadArchive(f"{entry.name[:200]!r} appears twice")
            seen.add(entry.name)
            parts = entry.name.split("/")
            above = ["/".join(parts[:n]) for n in range(1, len(parts))]
            if not seen.isdisjoint(above):
                raise BadArchive(f"{entry.name[:200]!r} is below a file")
            folders.update(above)
            total += entry.size
            if len(seen) > MOST_FILES or total > LARGEST:
                raise BadArchive(f"it has more than {MOST_FILES:,} files or {LARGEST:,} bytes")
            content = archive.extractfile(entry)
            assert content is not None
            yield entry, _Content(content)


class _Entry(tarfile.TarInfo):
    """An entry whose extended header is checked before tarfile reads it."""

    @classmethod
    def frombuf(cls, buf: Any, encoding: str, errors: str) -> Self:
        entry = super().frombuf(buf, encoding, errors)
        if entry.type in _EXTENDED and not 0 <= entry.size <= _LONGEST_HEADER:
            raise BadArchive(f"it has an extended header of {entry.size:,} bytes")
        if entry.type == tarfile.XGLTYPE:
            raise BadArchive("it has a header for all entries")
        return entry


@contextmanager
def _damage_named() -> Iterator[None]:
    try:
        yield
    except (tarfile.TarError, ValueError, EOFError, OverflowError, RecursionError) as error:
        raise BadArchive(f"it is not a capsule: {error}") from error


class _Content(io.RawIOBase):
    """A file of an archive, whose damage is named where it is read."""

    def __init__(self, file: IO[bytes]) -> None:
        self._file = file

    def read(self, size: int = -1) -> bytes:
        with _damage_named():
            return self._file.read(size)


def _check_entry(entry: tarfile.TarInfo) -> None:
    check_name(entry.name)
    if entry.issym() or entry.islnk():
        raise BadArchive(f"{entry.name[:200]!r} is a link")
    if not entry.isreg() or entry.sparse is not None:
        raise BadArchive(f"{entry.name[:200]!r} is not a plain file")
    if entry.size < 0:
        raise BadArchive(f"{entry.name[:200]!r} has {entry.size:,} bytes")


def check_name(name: str) -> None:
    """Raise BadArchive unless the name is a path below the archive's top folders."""
    parts = name.split("/")
    if name.startswith("/") or "\\" in name or "\0" in name:
        raise BadArchive(f"{name[:200]!r} is not a relative path with slashes")
    if any(part in {"", ".", ".."} for part in parts):
        raise BadArchive(f"{name[:200]!r} leads out of the archive")
    if len(parts) < 2 or parts[0] not in {TRAINER, PROJECT}:
        raise BadArchive(f"{name[:200]!r} is not in {TRAINER}/ or {PROJECT}/")
    try:
        length = len(name.encode())
    except UnicodeEncodeError:
        raise BadArchive(f"{name[:200]!r} is not a name in UTF-8") from None
    if length > LONGEST_NAME:
        raise BadArchive(f"{name[:60]!r}... is longer than {LONGEST_NAME:,} bytes")


def digest_of(path: str | os.PathLike[str]) -> str:
    """Return the SHA-256 of a file."""
    with open(path, "rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()
