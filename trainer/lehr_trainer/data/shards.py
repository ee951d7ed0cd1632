"""Writer of token shards: complete or absent, resumable, each with its digest."""

from __future__ import annotations

import hashlib
import json
import os
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

import numpy as np

from lehr_trainer.data.token_dataset import (
    DOCUMENT_RECORD,
    VALIDATION,
    VALIDATION_DOCUMENTS,
    Shard,
    sha256_file,
)
from lehr_trainer.data.tokenizers import TokenArray, token_ids
from lehr_trainer.files import write_atomically

STATE = "state.json"
"""Progress of reading, until the folder is published."""


@dataclass(frozen=True)
class HeldOutShard:
    """A document of the validation set."""

    hash: bytes
    tokens: TokenArray
    bytes: int
    source: str


@dataclass(frozen=True)
class TokenBatch:
    """Documents that were read and tokenized together."""

    documents: int
    """Number of documents read, empty ones included: what a resumed reader skips."""
    train: TokenArray
    train_documents: int
    held_out: list[HeldOutShard]
    text_bytes: int


@dataclass(frozen=True)
class CorpusPosition:
    """Everything before this document of this source has been written."""

    source: int = 0
    document: int = 0


@dataclass
class _Progress:
    position: CorpusPosition = field(default_factory=CorpusPosition)
    train: list[Shard] = field(default_factory=list)
    validation_tokens: int = 0
    validation_documents: int = 0
    held_out: list[list[Any]] = field(default_factory=list)
    """Sources in the order of reading, each with its number of held-out documents."""
    duplicates: int = 0


class _OpenShard:
    """A training shard under a temporary name, until it is complete."""

    def __init__(self, path: Path, dtype: np.dtype[Any]) -> None:
        self._path = path
        self._dtype = dtype
        self._temporary = path.with_suffix(".bin.tmp")
        self._file = self._temporary.open("wb")
        self._digest = hashlib.sha256()
        self.tokens = 0
        self._documents = 0
        self._max_token = 0

    def write(self, tokens: TokenArray, documents: int) -> None:
        if not tokens.size:
            return
        data = tokens.astype(self._dtype, copy=False).view(np.uint8).data
        self._file.write(data)
        self._digest.update(data)
        self.tokens += tokens.size
        self._documents += documents
        self._max_token = max(self._max_token, int(token_ids(tokens).max()))

    def finish(self) -> Shard:
        _sync(self._file)
        self.close()
        self._temporary.replace(self._path)
        return Shard(
            name=self._path.name,
            tokens=self.tokens,
            documents=self._documents,
            max_token=self._max_token,
            sha256=self._digest.hexdigest(),
        )

    def close(self) -> None:
        self._file.close()

    def drop(self) -> None:
        self.close()
        self._temporary.unlink()


class ShardWriter:
    """Appends batches to the shards of a folder that is not published yet.

    When a shard is full, it is synced, and so is a record of the position reached: a later process
    resumes from there. Shards end between batches, so an interrupted preparation writes the same
    bytes as an undisturbed one.
    """

    def __init__(
        self, folder: Path, dtype: Literal["uint16", "uint32"], *, shard_tokens: int
    ) -> None:
        self._folder = folder
        self._dtype = np.dtype(dtype)
        self._shard_tokens = shard_tokens
        folder.mkdir(parents=True, exist_ok=True)
        self.done = self._resume()
        self.position = self.done.position  # From which reading must resume.
        self._shard = self._next_shard()
        self._validation = (folder / VALIDATION).open("ab")
        self._records = (folder / VALIDATION_DOCUMENTS).open("ab")
        self._held_out = set(
            np.fromfile(folder / VALIDATION_DOCUMENTS, dtype=DOCUMENT_RECORD)["hash"].tolist()
        )

    @property
    def train_tokens(self) -> int:
        return sum(shard.tokens for shard in self.done.train) + self._shard.tokens

    def append(self, batch: TokenBatch, then: CorpusPosition) -> None:
        """Write a batch; ``then`` is the position after it."""
        self._shard.write(batch.train, batch.train_documents)
        for document in batch.held_out:
            if document.hash in self._held_out:
                self.done.duplicates += 1
                continue
            self._held_out.add(document.hash)
            self._validation.write(document.tokens.astype(self._dtype).tobytes())
            record = (document.hash, document.tokens.size, document.bytes)
            self._records.write(np.array([record], dtype=DOCUMENT_RECORD).tobytes())
            self.done.validation_tokens += document.tokens.size
            self.done.validation_documents += 1
            if not self.done.held_out or self.done.held_out[-1][0] != document.source:
                self.done.held_out.append([document.source, 0])
            self.done.held_out[-1][1] += 1
        self.position = then
        if self._shard.tokens >= self._shard_tokens:
            self._close_shard()
            self._shard = self._next_shard()

    def finish(self) -> tuple[list[Shard], Shard, str]:
        """Finish the shards and the held-out set, and compute the digest of its documents."""
        if self._shard.tokens:
            self._close_shard()
        else:
            self._shard.drop()
        _sync(self._validation)
        _sync(self._records)
        self.close()
        held_out = self._folder / VALIDATION
        tokens = np.fromfile(held_out, dtype=self._dtype)
        validation = Shard(
            name=VALIDATION,
            tokens=tokens.size,
            documents=self.done.validation_documents,
            max_token=int(token_ids(tokens).max(initial=0)),
            sha256=sha256_file(held_out),
        )
        return self.done.train, validation, sha256_file(self._folder / VALIDATION_DOCUMENTS)

    def close(self) -> None:
        """Close the files; unfinished shards are written again next time."""
        for file in (self._shard, self._validation, self._records):
            file.close()

    def _next_shard(self) -> _OpenShard:
        return _OpenShard(self._folder / f"train-{len(self.done.train):05d}.bin", self._dtype)

    def _close_shard(self) -> None:
        self.done.train.append(self._shard.finish())
        self.done.position = self.position
        _sync(self._validation)
        _sync(self._records)
        self._save()

    # --- what an interrupted preparation left ------------------------------------------------

    def _save(self) -> None:
        done = self.done
        state: dict[str, Any] = {
            "source": done.position.source,
            "document": done.position.document,
            "train": [shard.model_dump() for shard in done.train],
            "validation_tokens": done.validation_tokens,
            "validation_documents": done.validation_documents,
            "held_out": done.held_out,
            "duplicates": done.duplicates,
        }
        write_atomically(self._folder / STATE, json.dumps(state))

    def _resume(self) -> _Progress:
        """Load the recorded progress if its files match it; otherwise start afresh."""
        try:
            state = json.loads((self._folder / STATE).read_bytes())
            progress = _Progress(
                position=CorpusPosition(state["source"], state["document"]),
                train=[Shard.model_validate(shard) for shard in state["train"]],
                validation_tokens=state["validation_tokens"],
                validation_documents=state["validation_documents"],
                held_out=state.get("held_out", []),  # Older versions have none.
                duplicates=state["duplicates"],
            )
            self._check(progress)
        except (OSError, ValueError, KeyError, TypeError):
            for leftover in self._folder.iterdir():
                leftover.unlink()
            return _Progress()
        return progress

    def _check(self, progress: _Progress) -> None:
        for shard in progress.train:
            if sha256_file(self._folder / shard.name) != shard.sha256:
                raise ValueError(shard.name)
        self._cut(VALIDATION, progress.validation_tokens * self._dtype.itemsize)
        self._cut(VALIDATION_DOCUMENTS, progress.validation_documents * DOCUMENT_RECORD.itemsize)

    def _cut(self, name: str, size: int) -> None:
        """Drop what was appended after the last record of progress."""
        path = self._folder / name
        if path.stat().st_size < size:
            raise ValueError(name)
        os.truncate(path, size)


def _sync(file: Any) -> None:
    file.flush()
    os.fsync(file.fileno())
