"""The server's capsules: one file each, named after its digest, in ``<home>/capsules``."""

from __future__ import annotations

import os
import secrets
import threading
import time
from collections.abc import Collection, Iterator
from contextlib import contextmanager
from pathlib import Path

from lehr.code import archive
from lehr.code.archive import BadArchive, SourceFile
from lehr.code.collect import trainer_sources
from lehr.errors import InternalError
from lehr_trainer.files import fsync_folder, write_atomically

UNUSED_S = 3600.0
"""Seconds that a capsule without a run stays: its submission may still be on its way."""
_SUFFIX = ".tar"
_EARLIER = ".earlier"
"""A file with the digests that were here when the record began: earlier records need them."""
_looking = threading.Lock()
"""Held while the age of a capsule is read and changed: a submission that has found it keeps it."""


class CapsuleStore:
    """Keep capsules by digest. Its methods may be called from any thread."""

    def __init__(self, home: Path) -> None:
        self._folder = home / "capsules"

    def path(self, digest: str) -> Path:
        return self._folder / f"{digest}{_SUFFIX}"

    def has(self, digest: str) -> bool:
        """Return whether the capsule is here, and keep it for a new submission."""
        try:
            with _looking:
                os.utime(self.path(digest))
        except FileNotFoundError:
            return False
        return True

    def keep_all(self) -> None:
        """Keep for good what is here now: a record that begins does not know who needs it."""
        if digests := self.digests():
            write_atomically(self._folder / _EARLIER, "\n".join(digests))

    def digests(self) -> list[str]:
        return sorted(path.stem for path in self._folder.glob(f"*{_SUFFIX}"))

    @contextmanager
    def draft(self) -> Iterator[Path]:
        """Yield the path of a new file, which is removed again unless ``adopt`` takes it."""
        self._folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        path = self._folder / f".draft-{os.getpid()}-{secrets.token_hex(8)}"
        try:
            yield path
        finally:
            path.unlink(missing_ok=True)

    def adopt(self, draft: Path, digest: str) -> None:
        """Check an archive that was received, and keep it under its digest.

        Raises:
            BadArchive: its digest is another one, or it has an entry that a capsule cannot have.
        """
        found = archive.digest_of(draft)
        if found != digest:
            raise BadArchive(f"its SHA-256 is {found}, not {digest}")
        if not archive.members(draft, digests=False):
            raise BadArchive("it has no file")
        with draft.open("rb") as file:
            os.fsync(file.fileno())
        draft.chmod(0o600)
        draft.rename(self.path(digest))
        fsync_folder(self._folder)

    def make(self, sources: list[SourceFile]) -> str:
        """Make the capsule of these files, unless it is here; return its digest."""
        with self.draft() as draft:
            try:
                with draft.open("xb") as output:
                    digest, _ = archive.write(sources, output)
            except BadArchive as error:
                raise InternalError(f"the capsule could not be made: {error}") from error
            if not self.has(digest):
                self.adopt(draft, digest)
        return digest

    def collect_garbage(self, used: Collection[str], *, unused_s: float = UNUSED_S) -> list[str]:
        """Remove capsules that no run needs, and drafts of processes that were killed."""
        now = time.time()
        removed = []
        earlier = self._folder / _EARLIER
        used = {*used, *(earlier.read_text().split() if earlier.exists() else ())}
        for path in self._folder.glob("*"):
            is_capsule = path.suffix == _SUFFIX
            if not (path.name.startswith(".draft-") or (is_capsule and path.stem not in used)):
                continue
            with _looking:
                try:
                    if now - path.stat().st_mtime < unused_s:
                        continue
                except FileNotFoundError:
                    continue
                path.unlink(missing_ok=True)
            if is_capsule:
                removed.append(path.stem)
        return sorted(removed)


class InstalledTrainer:
    """The capsule of the trainer that is installed with the server, made again when it changes."""

    def __init__(self, capsules: CapsuleStore) -> None:
        self._capsules = capsules
        self._guard = threading.Lock()
        self._seen: tuple[object, str] | None = None

    def digest(self) -> str:
        sources = trainer_sources()
        state = [(name, (s := os.stat(path)).st_size, s.st_mtime_ns) for name, path, _ in sources]  # noqa: PTH116
        with self._guard:
            if (
                self._seen is None
                or self._seen[0] != state
                or not self._capsules.has(self._seen[1])
            ):
                self._seen = (state, self._capsules.make(sources))
            return self._seen[1]
