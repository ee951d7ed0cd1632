"""``manifest.json``: what a checkpoint consists of. Pure, so that the platform reads it too."""

from __future__ import annotations

from pathlib import Path
from typing import IO, Literal

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from lehr_trainer.contract import layout
from lehr_trainer.errors import BadCheckpoint
from lehr_trainer.files import open_regular

LARGEST_BYTES = 16 << 20
"""The largest manifest that is read: a server also reads those of programs that nobody trusts."""
MOST_FILES = 10_000
_LONGEST_NAME = 240
"""Bytes. File systems allow 255; a copy's draft has a longer name."""


class FileEntry(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True)

    size: int = Field(ge=0)
    sha256: str = Field(pattern=r"^[0-9a-f]{64}$")


class Manifest(BaseModel):
    """Written last: a folder without one is not a checkpoint."""

    model_config = ConfigDict(extra="ignore", frozen=True)

    format: Literal[1] = 1
    step: int
    tokens: int
    val_loss: float | None = Field(default=None, allow_inf_nan=False)
    """Of these very weights, when they were evaluated; None also if it is NaN or infinite."""
    score: float | None = Field(default=None, allow_inf_nan=False)
    """The same of the task that ``checkpoint.keep_best`` names."""
    reason: str
    code: str | None = None
    """Digest of the capsule that the run trains with; None outside the platform."""
    versions: dict[str, str] = {}
    """Of Python and all distributions, for a program of a user. The state of Lehr's trainer has its
    own.
    """
    path: str | None = None
    """Of a program of a user: the file or folder that it saved, below its working folder. None in
    older manifests, and if it saved several.
    """
    files: dict[str, FileEntry] = {}

    @property
    def size_bytes(self) -> int:
        return sum(entry.size for entry in self.files.values())


def read_manifest(directory: Path) -> Manifest:
    """Read the manifest, and check that its file names are plain names.

    Raises:
        BadCheckpoint: it is missing or not a manifest.
    """
    path = directory / layout.MANIFEST
    try:
        with open_regular(path) as file:
            return parse_manifest(read_limited(file, str(path)), str(path))
    except FileNotFoundError:
        raise BadCheckpoint(f"{directory} has no {layout.MANIFEST}, so it is incomplete") from None
    except OSError as error:
        reason = str(error).splitlines()[0]
        raise BadCheckpoint(f"{path} cannot be read: {reason}") from error


def read_limited(file: IO[bytes], where: str) -> bytes:
    """Read a manifest's bytes.

    Raises:
        BadCheckpoint: there are too many.
    """
    content = file.read(LARGEST_BYTES + 1)
    if len(content) > LARGEST_BYTES:
        raise BadCheckpoint(f"{where} has more than {LARGEST_BYTES:,} bytes, the limit")
    return content


def parse_manifest(content: bytes, where: str) -> Manifest:
    """Parse a manifest's bytes; ``where`` names it in errors.

    Raises:
        BadCheckpoint: they are not a manifest.
    """
    try:
        manifest = Manifest.model_validate_json(content)
    except ValidationError as error:
        reason = str(error).splitlines()[0]
        raise BadCheckpoint(f"{where} cannot be read: {reason}") from error
    if len(manifest.files) > MOST_FILES:
        number = len(manifest.files)
        raise BadCheckpoint(f"{where} lists {number:,} files; the limit is {MOST_FILES:,}")
    for name in manifest.files:
        if not is_plain(name):
            raise BadCheckpoint(f"{where} lists {name[:300]!r}, which is not a plain file name")
    return manifest


def is_plain(name: str) -> bool:
    """Return whether a checkpoint may have a file of this name, in its only folder."""
    return (
        Path(name).name == name
        and name not in {"", ".", "..", layout.MANIFEST}
        and name.isprintable()
        and len(name.encode(errors="replace")) <= _LONGEST_NAME
    )
