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
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from itertools import chain
from pathlib import Path
from typing import Annotated, Any, Literal, Self

import numpy as np
from numpy.typing import NDArray
from pydantic import BaseModel, ConfigDict, Field, ValidationError

from lehr_trainer.data.checks import check_vocabulary
from lehr_trainer.data.tokenizers import MASKED, token_ids
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
    """Kind and identity of the corpus, for people. ``held_out`` lists its sources and the number of
    held-out documents of each, in the order of reading. Not a field, which older trainers refuse.
    """
    tokenizer: str
    dtype: Literal["uint16", "uint32"]
    vocab_size: int
    eos_id: int
    train: list[Shard]
    validation: Shard
    validation_documents_sha256: str
    duplicates_removed: int
    """Repeats of held-out documents; none of them is trained on."""
    # Left out of a manifest without it, so that its digest stays and older trainers read it.
    masked: Annotated[bool, Field(exclude_if=lambda masked: not masked)] = False
    """Whether tokens have ``MASKED`` set where they do not count."""

    @property
    def digest(self) -> str:
        """SHA-256 of the tokens: the same for the same text, wherever it was stored."""
        content = self.model_dump(mode="json", exclude={"corpus"})
        return hashlib.sha256(json.dumps(content, sort_keys=True).encode()).hexdigest()


@dataclass(frozen=True)
class HeldOutSample:
    """The held-out tokens that an evaluation scores: those of the first documents by hash.

    So they are a sample of all held-out documents, and the order of reading does not matter.
    """

    tokens: NDArray[Any]
    """The tokens to read, and one more: the last one is a target only."""
    counted: NDArray[np.bool_]
    """Which of the tokens are scored as targets: all, unless the corpus is masked."""
    lengths: NDArray[np.int64]
    """How many of the tokens each document has, in the same order."""
    sources: tuple[str, ...]
    """Source of each document; empty where it is not known."""
    text_bytes: float
    """UTF-8 bytes of the tokens' text. In a document that is cut, they count as evenly spread."""
    all_tokens: int
    """Number of all held-out tokens, scored or not."""
    all_documents: int

    @classmethod
    def read(cls, directory: Path, manifest: DatasetManifest, count: int) -> Self:
        """Read at most ``count`` tokens, and one more."""
        documents = np.fromfile(directory / VALIDATION_DOCUMENTS, dtype=DOCUMENT_RECORD)
        runs = manifest.corpus.get("held_out", [])
        sources = list(chain.from_iterable([name] * number for name, number in runs))
        if len(sources) != len(documents):  # An earlier version prepared it, or a part of it.
            sources = [""] * len(documents)
        begins = np.cumsum(documents["tokens"]) - documents["tokens"]
        high, low = documents["hash"].copy().view(">u8").reshape(-1, 2).T
        order = np.lexsort((low, high))
        ends = np.cumsum(documents["tokens"][order])
        tokens = min(count + 1, int(ends[-1]))
        order = order[: int(np.searchsorted(ends, tokens)) + 1]
        taken = documents[order]
        lengths = taken["tokens"].astype(np.int64)
        lengths[-1] -= ends[len(order) - 1] - tokens
        stored = np.memmap(directory / VALIDATION, dtype=manifest.dtype, mode="r")
        texts = zip(begins[order].tolist(), lengths.tolist(), strict=True)
        read = np.concatenate([stored[begin : begin + length] for begin, length in texts])
        return cls(
            tokens=token_ids(read) if manifest.masked else read,
            counted=read < MASKED,
            lengths=lengths,
            sources=tuple(sources[index] for index in order),
            text_bytes=float((taken["bytes"] * (lengths / taken["tokens"])).sum()),
            all_tokens=int(documents["tokens"].sum()),
            all_documents=len(documents),
        )

    @classmethod
    def join(cls, samples: Mapping[str, HeldOutSample]) -> Self:
        """Put samples one after the other; the source of each document is the sample's name."""
        return cls(
            tokens=np.concatenate([one.tokens for one in samples.values()]),
            counted=np.concatenate([one.counted for one in samples.values()]),
            lengths=np.concatenate([one.lengths for one in samples.values()]),
            sources=tuple(name for name, one in samples.items() for _ in one.lengths),
            text_bytes=sum(one.text_bytes for one in samples.values()),
            all_tokens=sum(one.all_tokens for one in samples.values()),
            all_documents=sum(one.all_documents for one in samples.values()),
        )

    def describe(self, most: int) -> str:
        """Say how much of the held-out set an evaluation of at most so many tokens scores."""
        scored = min(most, self.tokens.size - 1)
        documents = int(np.searchsorted(np.cumsum(self.lengths), scored, side="right")) + 1
        counted = int(np.count_nonzero(self.counted[1 : scored + 1]))
        read = "" if counted == scored else f"; it reads {scored:,}"
        return (
            f"{counted:,} of {self.all_tokens:,} held-out tokens, "
            f"from {documents:,} of {self.all_documents:,} documents{read}"
        )


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
    masked: bool
    """Whether tokens have ``MASKED`` set where they do not count; of a mix, those of some part."""
    held_out: HeldOutSample = field(compare=False, repr=False)

    @property
    def train_bytes(self) -> int:
        return self.tokens * np.dtype(self.dtype).itemsize

    @property
    def corpora(self) -> Mapping[str, PreparedData]:
        """Each corpus by its name in a mix; one that is no mix has no name."""
        return {"": self}

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
    sample = HeldOutSample.read(directory, manifest, validation_tokens)
    return PreparedData(
        directory=directory,
        digest=manifest.digest,
        tokens=sum(shard.tokens for shard in manifest.train),
        documents=sum(shard.documents for shard in manifest.train),
        dtype=manifest.dtype,
        vocab_size=manifest.vocab_size,
        eos_id=manifest.eos_id,
        tokenizer=manifest.tokenizer,
        masked=manifest.masked,
        **scored_fields(manifest.tokenizer, sample, validation_tokens),
    )


def scored_fields(tokenizer: str, sample: HeldOutSample, most: int) -> dict[str, Any]:
    """Return the fields of ``PreparedData`` on its held-out set; ``most`` tokens are scored."""
    scored = min(most, sample.tokens.size - 1)
    seen = sample.tokens[: scored + 1]
    # Whatever the width of the tokens.
    content = f"{tokenizer} {seen.size} ".encode() + seen.astype("<u4").tobytes()
    if not (counted := sample.counted[: seen.size]).all():
        content += counted.tobytes()
    return {
        "validation_tokens": scored,
        "validation_digest": hashlib.sha256(content).hexdigest(),
        "bytes_per_token": sample.text_bytes / int(np.count_nonzero(sample.counted)),
        "held_out": sample,
    }


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
        with contextlib.suppress(OSError):  # A read-only folder is verified each time.
            write_atomically(directory / _VERIFIED, json.dumps(stamps))


def _read_stamps(directory: Path) -> dict[str, list[int]]:
    try:
        read = json.loads((directory / _VERIFIED).read_bytes())
    except (OSError, ValueError):
        return {}
    return read if isinstance(read, dict) else {}


def sha256_file(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


@dataclass(frozen=True)
class PreparedMix(PreparedData):
    """A mix: the sums over its corpora, and the corpora themselves.

    ``directory`` is the folder that holds those of the corpora. Held-out documents are chosen by
    their hash and one share. So a document that is held out of one corpus is trained on in none.
    """

    parts: Mapping[str, PreparedData]
    """By name, in the order of the names."""
    weights: Mapping[str, int]
    """Whole numbers, by name, in the same order."""

    @classmethod
    def of(
        cls, parts: Mapping[str, PreparedData], weights: Mapping[str, int], validation_tokens: int
    ) -> PreparedMix:
        """Join corpora that were prepared with one tokenizer; weights are whole numbers.

        Each part was opened with its share of the validation tokens, an evaluation's most.
        """
        names = sorted(parts)
        parts = {name: parts[name] for name in names}
        weights = {name: weights[name] for name in names}
        first = parts[names[0]]
        sample = HeldOutSample.join({name: part.held_out for name, part in parts.items()})
        identity = [[name, weights[name], part.digest] for name, part in parts.items()]
        return cls(
            directory=first.directory.parent,
            digest=hashlib.sha256(json.dumps(identity).encode()).hexdigest(),
            tokens=sum(part.tokens for part in parts.values()),
            documents=sum(part.documents for part in parts.values()),
            dtype=first.dtype,
            vocab_size=first.vocab_size,
            eos_id=first.eos_id,
            tokenizer=first.tokenizer,
            masked=any(part.masked for part in parts.values()),
            parts=parts,
            weights=weights,
            **scored_fields(first.tokenizer, sample, validation_tokens),
        )

    @property
    def corpora(self) -> Mapping[str, PreparedData]:
        return self.parts

    def share(self, name: str) -> float:
        """Return the share of a corpus in the training tokens."""
        return self.weights[name] / sum(self.weights.values())
