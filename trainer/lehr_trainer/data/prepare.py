"""Preparation of token shards: read, tokenize on all cores, hold out, write, publish.

One stream reads in a fixed order. A pool of threads tokenizes batches of documents (tokenizers are
native code that releases the interpreter lock), and they are written in the order of reading. So
the shards do not depend on the number of cores.
"""

from __future__ import annotations

import errno
import hashlib
import json
import os
import shutil
from collections import deque
from collections.abc import Collection, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

import numpy as np

from lehr_trainer.configs.corpus import ChatCorpus, Corpus, FilesCorpus, HubCorpus, MixCorpus
from lehr_trainer.configs.train import DataConfig, ValidationConfig
from lehr_trainer.contract.records import Notify
from lehr_trainer.data.away import shards_of_absent
from lehr_trainer.data.chats import ChatEncoder
from lehr_trainer.data.checks import check_vocabulary, document_hash, is_held_out
from lehr_trainer.data.corpora import CorpusReader, open_corpus
from lehr_trainer.data.lock import PHASE, Meter, PreparationLock, preparation_lock
from lehr_trainer.data.mix import whole_weights
from lehr_trainer.data.shards import STATE, CorpusPosition, HeldOutShard, ShardWriter, TokenBatch
from lehr_trainer.data.token_dataset import (
    MANIFEST,
    DatasetManifest,
    PreparedData,
    PreparedMix,
    open_prepared,
)
from lehr_trainer.data.tokenizers import MASKED, TokenArray, Tokenizer, load_tokenizer
from lehr_trainer.errors import BadData, DiskFull
from lehr_trainer.files import fsync_folder, write_atomically

__all__ = ["Notify", "prepare_dataset"]

SHARD_TOKENS = 2**26
"""128 MiB of uint16; an interrupted preparation loses at most this much."""
_BATCH_BYTES = 2**20
"""Text that one thread tokenizes at a time."""
_SHOWN_PATHS = 3
_NO_ROOM = frozenset({errno.ENOSPC, errno.EDQUOT, errno.EFBIG})


def prepare_dataset(
    data: DataConfig,
    validation: ValidationConfig,
    vocab_size: int,
    root: Path,
    notify: Notify,
    *,
    started_by: str = "",
    hash_everything: bool = False,
    trained_on: Collection[str] = (),
    seen: bool = False,
) -> PreparedData:
    """Return the token shards of a corpus or a mix; prepare those that do not exist yet.

    May be called by any number of processes at once: one prepares, the others wait.

    Args:
        data: corpus, tokenizer, and how much of the corpus.
        validation: what is held out.
        vocab_size: the model's.
        root: folder of all prepared corpora.
        notify: called with the progress, at most several times a second. If it raises, preparation
            or waiting stops, and finished shards are reused next time.
        started_by: name shown to processes that wait. Default: the platform's attempt, if any.
        hash_everything: read all shards to check their digests, however large.
        trained_on: digests of the run's data before an interruption; used if a corpus is away.
        seen: somebody has found the corpus before.

    Raises:
        BadData: the corpus or tokenizer cannot be used.
        DataUnreachable: the corpus is away, and was there before.
        BadConfig: the tokenizer does not fit the model's vocabulary.
        DiskFull: no room for the shards.
    """
    if isinstance(data.corpus, MixCorpus):
        # Each corpus as if it were alone, so that other runs can use its shards, too. Each holds
        # out the same share of its documents, and an evaluation scores equally many tokens of each:
        # runs with other weights are evaluated on the same set.
        mix, parts = data.corpus, dict[str, PreparedData]()
        for name, part in mix.parts.items():

            def report(phase: str, message: str, done: float | None, name: str = name) -> None:
                notify(phase, f"{name}: {message}", done)

            try:
                parts[name] = prepare_dataset(
                    data.model_copy(update={"corpus": part.corpus}),
                    of_each(validation, mix),
                    vocab_size,
                    root,
                    report,
                    started_by=started_by,
                    hash_everything=hash_everything,
                    trained_on=trained_on,
                    seen=seen,
                )
            except BadData as error:
                raise type(error)(f"data.corpus.parts.{name}: {error}") from None
        weights = whole_weights({name: part.weight for name, part in mix.parts.items()})
        return PreparedMix.of(parts, weights, validation.tokens)
    if not started_by and (attempt := os.environ.get("LEHR_ATTEMPT")):
        started_by = f"attempt {attempt}"
    tokenizer = load_tokenizer(data.tokenizer)
    check_vocabulary(data.tokenizer, tokenizer.vocab_size, vocab_size)
    chats = None
    if isinstance(data.corpus, ChatCorpus):
        chats = ChatEncoder(data, data.corpus, tokenizer)
        if chats.note:
            notify(PHASE, chats.note, None)
    try:
        corpus = open_corpus(data.corpus)
        directory = root / cache_key(corpus, tokenizer, data, validation)
        seen = True
        finished = (directory / MANIFEST).is_file
        if not finished():
            with preparation_lock(
                directory.with_suffix(".lock"), notify, started_by=started_by
            ) as lock:
                if not finished():
                    _Preparation(
                        corpus, tokenizer, chats, data, validation, directory, notify, lock
                    ).run()
    except (BadData, OSError) as error:
        directory = shards_of_absent(error, data, root, trained_on, seen=seen)
    return open_prepared(directory, validation.tokens, vocab_size, hash_everything=hash_everything)


def of_each(validation: ValidationConfig, mix: MixCorpus) -> ValidationConfig:
    """Return the config of the held-out set of each part."""
    return validation.model_copy(update={"tokens": max(1, validation.tokens // len(mix.parts))})


def cache_key(
    corpus: CorpusReader, tokenizer: Tokenizer, data: DataConfig, validation: ValidationConfig
) -> str:
    """Return the name of the folder for this corpus, tokenizer, held-out share and mask."""
    identity = {
        "format": 1,
        "corpus": corpus.identity(),
        "tokenizer": tokenizer.identity(),
        "max_tokens": data.max_tokens,
        "held_out": validation.share,
        **({"loss_mask": data.loss_mask} if data.masks_prompts else {}),
    }
    # The same in every process.
    return hashlib.sha256(json.dumps(identity, sort_keys=True).encode()).hexdigest()[:24]


@dataclass
class _Preparation:
    """One preparation, by the process that holds the lock."""

    corpus: CorpusReader
    tokenizer: Tokenizer
    chats: ChatEncoder | None
    data: DataConfig
    validation: ValidationConfig
    directory: Path
    notify: Notify
    lock: PreparationLock

    def run(self) -> None:
        building = self.directory.with_suffix(".partial")
        narrow = self.tokenizer.vocab_size <= 2**16 and not self.data.masks_prompts
        dtype: Literal["uint16", "uint32"] = "uint16" if narrow else "uint32"
        try:
            writer = ShardWriter(building, dtype, shard_tokens=SHARD_TOKENS)
            try:
                self._write(writer)
                train, held_out, documents_sha256 = writer.finish()
            finally:
                writer.close()
            self._check_not_empty(writer, building)
            manifest = DatasetManifest(
                corpus={
                    **self.corpus.description(),
                    "held_out": writer.done.held_out,
                    **({"note": self.chats.note} if self.chats else {}),
                },
                tokenizer=self.data.tokenizer,
                dtype=dtype,
                vocab_size=self.tokenizer.vocab_size,
                eos_id=self.tokenizer.eos_id,
                train=train,
                validation=held_out,
                validation_documents_sha256=documents_sha256,
                duplicates_removed=writer.done.duplicates,
                masked=self.data.masks_prompts,
            )
            self._publish(building, manifest)
        except OSError as error:
            if error.errno in _NO_ROOM:
                raise DiskFull(
                    f"no space left for the token shards in {building}: {error.strerror}; "
                    "free some space or set LEHR_DATA to another disk; finished shards are reused"
                ) from None
            raise

    def _write(self, writer: ShardWriter) -> None:
        meter = Meter(self.corpus, self.data.max_tokens, self.notify, self.lock.report)
        if reused := len(writer.done.train):
            self.notify(PHASE, f"resuming after {reused} finished shards", None)
        limit = self.data.max_tokens
        left = None if limit is None else limit - writer.train_tokens
        for batch, then in self._tokenized(writer.position) if left != 0 else ():
            if left is not None and batch.train.size >= left:
                writer.append(_cut(batch, left, self._end), then)
                break
            writer.append(batch, then)
            left = None if left is None else left - batch.train.size
            meter.count(batch.train.size, batch.text_bytes, then, writer.train_tokens)
        meter.summary(writer.train_tokens, writer.done.validation_tokens)

    def _tokenized(self, start: CorpusPosition) -> Iterator[tuple[TokenBatch, CorpusPosition]]:
        """Yield batches in reading order, tokenized by all cores a little ahead of the writer."""
        cores = len(os.sched_getaffinity(0))
        pending: deque[tuple[Future[TokenBatch], CorpusPosition]] = deque()
        with ThreadPoolExecutor(cores, "tokenize") as pool:
            try:
                for texts, first, then in self._batches(start):
                    pending.append((pool.submit(self._tokenize, texts, first), then))
                    if len(pending) > 2 * cores:
                        future, position = pending.popleft()
                        yield future.result(), position
                while pending:
                    future, position = pending.popleft()
                    yield future.result(), position
            finally:
                for future, _ in pending:
                    future.cancel()

    def _batches(
        self, start: CorpusPosition
    ) -> Iterator[tuple[list[str], CorpusPosition, CorpusPosition]]:
        """Yield about a mebibyte of documents of one source, their position, and the one after."""
        for source in range(start.source, self.corpus.sources()):
            read = start.document if source == start.source else 0
            texts: list[str] = []
            size = 0
            for text in self.corpus.documents(source, read):
                texts.append(text)
                size += len(text)
                if size >= _BATCH_BYTES:
                    first, read = read, read + len(texts)
                    yield texts, CorpusPosition(source, first), CorpusPosition(source, read)
                    texts, size = [], 0
            # Also when empty: the next source begins here.
            yield texts, CorpusPosition(source, read), CorpusPosition(source + 1, 0)

    @property
    def _end(self) -> int:
        """The token that ends a document."""
        eos = self.tokenizer.eos_id
        return eos | int(MASKED) if self.data.masks_prompts else eos

    def _encode(self, texts: list[str], raw: list[bytes]) -> list[tuple[TokenArray, int]]:
        """Return the tokens of each document, and the bytes of its text."""
        if self.chats is not None:
            return [self.chats.encode(text) for text in texts]
        return list(zip(self.tokenizer.encode_all(texts), map(len, raw), strict=True))

    def _tokenize(self, texts: list[str], first: CorpusPosition) -> TokenBatch:
        numbers = [at for at, text in enumerate(texts) if text and not text.isspace()]
        kept = [_encodable(texts[at]) for at in numbers]
        raw = [text.encode() for text in kept]
        hashes = [document_hash(data) for data in raw]
        train: list[TokenArray] = []
        held_out: list[HeldOutShard] = []
        train_documents = 0
        end = np.array([self._end], dtype=np.uint32)
        encoded = self._encode(kept, raw)
        for number, name, (tokens, size) in zip(numbers, hashes, encoded, strict=True):
            if is_held_out(name, self.validation.share):
                source = self.corpus.source_name(first.source, first.document + number)
                held_out.append(HeldOutShard(name, np.concatenate([tokens, end]), size, source))
            else:
                train += [tokens, end]
                train_documents += 1
        return TokenBatch(
            documents=len(texts),
            train=np.concatenate(train) if train else np.empty(0, dtype=np.uint32),
            train_documents=train_documents,
            held_out=held_out,
            text_bytes=sum(map(len, raw)),
        )

    def _check_not_empty(self, writer: ShardWriter, building: Path) -> None:
        if writer.train_tokens and writer.done.validation_tokens > 1:
            return
        shutil.rmtree(building)
        if writer.train_tokens == writer.done.validation_tokens == 0:
            raise BadData(f"the corpus holds no text: {_blank(self.data.corpus)}")
        if writer.train_tokens == 0:
            raise BadData(
                "every document of the corpus was held out for validation: it has too few "
                "documents; use a larger corpus, or for text files set data.corpus.document to "
                "paragraph"
            )
        limited = " or data.max_tokens" if self.data.max_tokens else ""
        raise BadData(
            f"no document was held out for validation (a share of {self.validation.share:.1%}): "
            f"too few were read; raise validation.share{limited}, or for text files set "
            "data.corpus.document to paragraph"
        )

    def _publish(self, building: Path, manifest: DatasetManifest) -> None:
        write_atomically(building / MANIFEST, manifest.model_dump_json(indent=2) + "\n")
        if self.directory.exists():  # It has no manifest; otherwise it would have been used.
            shutil.rmtree(self.directory)
        building.rename(self.directory)
        fsync_folder(self.directory.parent)
        (self.directory / STATE).unlink()


def _blank(corpus: Corpus) -> str:
    """Describe what was read of a corpus without text, and which setting to check."""
    match corpus:
        case FilesCorpus(kind="text") | ChatCorpus():
            return f"all documents of {_some(corpus.paths)} are blank"
        case FilesCorpus():
            return (
                f"all documents are blank in the field {corpus.text_field} of "
                f"{_some(corpus.paths)}; if another field has the text, set data.corpus.text_field"
            )
        case HubCorpus():
            return (
                f"all documents are blank in the field {corpus.text_field} of dataset "
                f"{corpus.id}, split {corpus.split}; check data.corpus.text_field and split"
            )
        case _:
            return "all of its documents are blank"


def _some(paths: list[str]) -> str:
    shown = ", ".join(paths[:_SHOWN_PATHS])
    more = len(paths) - _SHOWN_PATHS
    return f"{shown} and {more} more" if more > 0 else shown


def _encodable(text: str) -> str:
    """Replace lone surrogates, which JSON may hold, by question marks."""
    try:
        text.encode()
    except UnicodeEncodeError:
        return text.encode(errors="replace").decode()
    return text


def _cut(batch: TokenBatch, tokens: int, eos: int) -> TokenBatch:
    """Cut a batch after its first training tokens, and end the last document properly."""
    train = batch.train[:tokens].copy()
    train[-1] = eos
    documents = int(np.count_nonzero(train == eos))
    return TokenBatch(batch.documents, train, documents, batch.held_out, batch.text_bytes)
