"""What preparation leaves behind: a folder of token shards and the manifest that vouches for them.

::

    <root>/<key>/
      manifest.json            written last; the folder appears by one rename, whole
      train-00000.bin ...      tokens, little-endian uint16 or uint32, each document ended by eos
      validation.bin           the held-out documents, likewise
      validation.documents     one record a held-out document: hash, tokens, bytes
      verified.json            sizes and times under which the digests were last checked
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray
from pydantic import BaseModel, ConfigDict, ValidationError

from lehr_trainer.data.checks import check_vocabulary
from lehr_trainer.errors import BadData
from lehr_trainer.files import write_atomically

MANIFEST = "manifest.json"
VALIDATION = "validation.bin"
VALIDATION_DOCUMENTS = "validation.documents"
_VERIFIED = "verified.json"
_ALWAYS_HASHED_BYTES = 256 * 2**20
"""Up to here reading everything costs a quarter of a second, so it is done every time."""

DOCUMENT_RECORD = np.dtype([("hash", "V16"), ("tokens", "<i8"), ("bytes", "<i8")])


class Shard(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True)

    name: str
    tokens: int
    documents: int
    max_token: int
    sha256: str


class DatasetManifest(BaseModel):
    """Holds neither time nor host name, so that preparing twice gives the same bytes."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    format: Literal[1] = 1
    corpus: dict[str, Any]
    """Kind and identity of the corpus, for people."""
    tokenizer: str
    dtype: Literal["uint16", "uint32"]
    vocab_size: int
    eos_id: int
    train: list[Shard]
    validation: Shard
    validation_documents_sha256: str
    duplicates_removed: int
    """Repeats of held-out documents; none of them is trained on."""

    @property
    def digest(self) -> str:
        """SHA-256 of the tokens: the same for the same text, wherever it was stored."""
        content = self.model_dump(mode="json", exclude={"corpus"})
        return hashlib.sha256(json.dumps(content, sort_keys=True).encode()).hexdigest()


@dataclass(frozen=True)
class PreparedData:
    """A corpus as tokens, checked and ready to read."""

    directory: Path
    digest: str
    tokens: int
    """Training tokens, the end of each document included."""
    documents: int
    validation_tokens: int
    """Most held-out tokens that an evaluation scores."""
    validation_digest: str
    """Digest of the scored tokens: equal digests make val/loss comparable."""
    bytes_per_token: float
    """UTF-8 bytes per scored validation token: nats / ln 2 / this = bits per byte."""
    dtype: Literal["uint16", "uint32"]
    vocab_size: int
    """Size of the tokenizer's vocabulary; every token is smaller."""
    eos_id: int
    """Token that ends each document, and so marks where documents meet."""
    tokenizer: str

    @property
    def train_bytes(self) -> int:
        return self.tokens * np.dtype(self.dtype).itemsize

    def held_out_tokens(self, count: int) -> NDArray[Any]:
        """Read the first ``count`` held-out tokens, or all if there are fewer."""
        return np.fromfile(self.directory / VALIDATION, dtype=self.dtype, count=count)

    def require_same(
        self, *, digest: str | None = None, validation_digest: str | None = None
    ) -> None:
        """Refuse other data than a checkpoint was trained or scored on.

        Raises:
            BadData: a digest was given and it differs.
        """
        if validation_digest is not None and validation_digest != self.validation_digest:
            raise BadData(
                f"the validation set changed: {validation_digest[:12]} before, now "
                f"{self.validation_digest[:12]} ({self.directory}); val/loss would no longer "
                "compare. Restore the corpus, data.tokenizer, data.max_tokens and validation "
                "of the first attempt, or start a new run"
            )
        if digest is not None and digest != self.digest:
            raise BadData(
                f"the training data changed: {digest[:12]} before, now {self.digest[:12]} "
                f"({self.directory}). Restore the corpus of the first attempt, or start a new run"
            )


def open_prepared(
    directory: Path, validation_tokens: int, vocab_size: int, *, hash_everything: bool = False
) -> PreparedData:
    """Read the manifest of a prepared corpus and check that the shards match it.

    Raises:
        BadData: a file is missing, truncated or damaged.
        BadConfig: the model's vocabulary is too small for the tokens.
    """
    manifest = read_manifest(directory)
    check_vocabulary(manifest.tokenizer, manifest.vocab_size, vocab_size)
    _verify(directory, manifest, hash_everything=hash_everything)
    held_out = np.fromfile(directory / VALIDATION, dtype=manifest.dtype)
    # The last scored token is a target only, so one more token is needed.
    scored = min(validation_tokens, held_out.size - 1)
    seen = held_out[: scored + 1]
    return PreparedData(
        directory=directory,
        digest=manifest.digest,
        tokens=sum(shard.tokens for shard in manifest.train),
        documents=sum(shard.documents for shard in manifest.train),
        validation_tokens=scored,
        validation_digest=tokens_digest(manifest.tokenizer, seen),
        bytes_per_token=_bytes_per_token(directory, scored + 1),
        dtype=manifest.dtype,
        vocab_size=manifest.vocab_size,
        eos_id=manifest.eos_id,
        tokenizer=manifest.tokenizer,
    )


def tokens_digest(tokenizer: str, tokens: NDArray[Any]) -> str:
    """Return the digest of scored tokens, whatever their width."""
    content = f"{tokenizer} {tokens.size} ".encode() + tokens.astype("<u4").tobytes()
    return hashlib.sha256(content).hexdigest()


def read_manifest(directory: Path) -> DatasetManifest:
    path = directory / MANIFEST
    try:
        return DatasetManifest.model_validate_json(path.read_bytes())
    except (OSError, ValidationError) as error:
        raise BadData(f"{path} cannot be read ({_short(error)}); {_remedy(directory)}") from None


def _short(error: Exception) -> str:
    return str(error).splitlines()[0]


def _remedy(directory: Path) -> str:
    return f"delete {directory} and the data will be prepared again"


def _verify(directory: Path, manifest: DatasetManifest, *, hash_everything: bool) -> None:
    width = np.dtype(manifest.dtype).itemsize
    sizes: dict[str, int] = {}
    digests: dict[str, str] = {}
    for shard in (*manifest.train, manifest.validation):
        sizes[shard.name], digests[shard.name] = shard.tokens * width, shard.sha256
        if shard.max_token >= manifest.vocab_size:
            raise BadData(
                f"{directory / shard.name} holds token {shard.max_token}, outside the vocabulary "
                f"of {manifest.vocab_size}; {_remedy(directory)}"
            )
    sizes[VALIDATION_DOCUMENTS] = manifest.validation.documents * DOCUMENT_RECORD.itemsize
    digests[VALIDATION_DOCUMENTS] = manifest.validation_documents_sha256

    stamps: dict[str, list[int]] = {}
    for name, size in sizes.items():
        try:
            found = (directory / name).stat()
        except OSError as error:
            raise BadData(
                f"{directory / name} cannot be read ({error.strerror}); {_remedy(directory)}"
            ) from None
        if found.st_size != size:
            raise BadData(
                f"{directory / name} has {found.st_size:,} bytes, but its manifest has "
                f"{size:,}: it was truncated or changed; {_remedy(directory)}"
            )
        stamps[name] = [found.st_size, found.st_mtime_ns]

    # Reading tens of gigabytes at each start would be a waste: a verified file is verified again
    # only when its size or time changed (or by `prepare --verify`).
    known = {} if hash_everything else _read_stamps(directory)
    small = sum(sizes.values()) <= _ALWAYS_HASHED_BYTES
    doubtful = [name for name in sizes if small or known.get(name) != stamps[name]]
    with ThreadPoolExecutor(max_workers=min(8, os.cpu_count() or 1)) as pool:
        for name, digest in zip(
            doubtful, pool.map(lambda name: sha256_file(directory / name), doubtful), strict=True
        ):
            if digest != digests[name]:
                raise BadData(
                    f"{directory / name} is damaged: its SHA-256 is {digest[:12]}, its manifest "
                    f"has {digests[name][:12]}; {_remedy(directory)}"
                )
    if known != stamps:
        write_stamps(directory, stamps)


def _read_stamps(directory: Path) -> dict[str, list[int]]:
    try:
        read = json.loads((directory / _VERIFIED).read_bytes())
    except (OSError, ValueError):
        return {}
    return read if isinstance(read, dict) else {}


def write_stamps(directory: Path, stamps: dict[str, list[int]]) -> None:
    """Record what was verified; a read-only folder is verified each time."""
    with contextlib.suppress(OSError):
        write_atomically(directory / _VERIFIED, json.dumps(stamps))


def sha256_file(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def _bytes_per_token(directory: Path, tokens: int) -> float:
    """Compute UTF-8 bytes per token over the first ``tokens`` held-out tokens."""
    documents = np.fromfile(directory / VALIDATION_DOCUMENTS, dtype=DOCUMENT_RECORD)
    ends = np.cumsum(documents["tokens"])
    sizes = np.concatenate([[0], np.cumsum(documents["bytes"])])
    # Inside the last scored document, bytes are assumed to be spread evenly.
    covered = float(np.interp(tokens, np.concatenate([[0], ends]), sizes))
    return covered / tokens
