"""Write a support bundle: one archive that describes a home, its server and chosen runs.

It works on files, so also where the server does not start. What cannot be collected is replaced by
the error, since a broken home is why somebody asks for help.
"""

from __future__ import annotations

import io
import os
import tarfile
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from lehr.check import Check
from lehr.errors import UserError
from lehr.secret_text import redact
from lehr.support import contents, secrets


@dataclass(frozen=True)
class BundleFile:
    name: str
    """Path inside the archive."""
    size_bytes: int
    error: str | None
    """Why the file holds an error instead of what it should; None if it is complete."""


@dataclass(frozen=True)
class SupportBundle:
    path: Path
    files: list[BundleFile]


def write(
    home: Path,
    target: Path,
    run_ids: Sequence[str] = (),
    *,
    checks: Callable[[], Sequence[Check]],
) -> SupportBundle:
    """Write the archive, readable by its owner only.

    Args:
        home: the home folder of the server.
        target: the .tar.gz file to create. It must not exist.
        run_ids: ids of runs, or their unique prefixes or names, that are described whole.
        checks: checks of this machine.

    Raises:
        NotFound: a run does not exist.
        UserError: a run is not unique, or ``target`` exists or cannot be written.
    """
    runs = contents.find_runs(home, run_ids)
    known = secrets.known_values(home)
    folder = target.name.removesuffix(".tar.gz")
    try:
        descriptor = os.open(target, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    except OSError as error:
        raise UserError(f"{target} cannot be written: {error.strerror}.") from error
    files = []
    with os.fdopen(descriptor, "wb") as file, tarfile.open(fileobj=file, mode="w:gz") as archive:
        for part in contents.parts(home, runs, checks):
            failed = None
            try:
                text = part.read()
            except Exception as failure:  # noqa: BLE001 - any part may be what is broken
                failed = redact(f"{type(failure).__name__}: {failure}", known)
                text = f"This part could not be collected.\n{failed}\n"
            data = redact(text, known).encode("utf-8", "replace")
            entry = tarfile.TarInfo(f"{folder}/{part.name}")
            entry.size, entry.mode, entry.mtime = len(data), 0o600, int(time.time())
            archive.addfile(entry, io.BytesIO(data))
            files.append(BundleFile(part.name, len(data), failed))
    return SupportBundle(target, files)
