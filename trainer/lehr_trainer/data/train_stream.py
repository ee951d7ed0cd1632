"""The training data as one endless stream of blocks: of a corpus, or of a mix."""

from __future__ import annotations

from abc import ABC, abstractmethod

import numpy as np
from numpy.typing import NDArray

from lehr_trainer.configs.train import BatchConfig
from lehr_trainer.data.mix import MixOrder, part_seed
from lehr_trainer.data.position import (
    CorpusProgress,
    DataPosition,
    MixProgress,
    OpenCorpus,
    Pieces,
    keys,
    resume,
)
from lehr_trainer.data.prepared_mix import PreparedMix
from lehr_trainer.data.shuffle import SampleOrder
from lehr_trainer.data.token_dataset import PreparedData, read_manifest
from lehr_trainer.data.tokens import Loading, Tokens, TrainTokens, choose_loading
from lehr_trainer.errors import BadData


class TrainStream(ABC):
    """Blocks from a position in the data on, end to end. A block is the run's longest sequence."""

    tokens: tuple[TrainTokens, ...]
    """Of each corpus."""
    notes: tuple[str, ...]
    """What is left out of an epoch, because a fork cuts it again."""

    @abstractmethod
    def rows(self, positions: NDArray[np.int64], offsets: NDArray[np.int64], length: int) -> Tokens:
        """Read ``length + 1`` tokens of the block at each position, from ``offsets`` into it.

        Positions ascend, without gaps.
        """

    @abstractmethod
    def epochs(self, position: int) -> dict[str, float]:
        """Return how often the blocks before ``position`` pass over the data, by metric."""

    @abstractmethod
    def position(self, position: int) -> DataPosition:
        """Return where ``position`` lies in the data."""


class CorpusStream(TrainStream):
    """One corpus; each epoch in an order of its own."""

    def __init__(
        self, prepared: PreparedData, block: int, seed: int, loading: Loading, start: DataPosition
    ) -> None:
        self._key, self._start, self._block = prepared.digest, start, block
        self._corpus = _corpus_from(prepared, start.corpora.get(self._key), seed, block)
        self.notes = () if self._corpus.note is None else (self._corpus.note,)
        self.tokens = (TrainTokens.open(prepared, loading, block, self._corpus.left),)
        self._order = SampleOrder(self._corpus.passes)

    def rows(self, positions: NDArray[np.int64], offsets: NDArray[np.int64], length: int) -> Tokens:
        first, last = int(positions[0]), int(positions[-1])
        blocks = self._order.blocks(first, last)[positions - first]
        return self.tokens[0].windows(blocks, offsets, length)

    def epochs(self, position: int) -> dict[str, float]:
        return {"data/epoch": self._corpus.passes.done(position)}

    def position(self, position: int) -> DataPosition:
        moved = self._corpus.position.moved(position * self._block)
        return DataPosition(corpora={**self._start.corpora, self._key: moved})


class MixStream(TrainStream):
    """Several corpora in proportion to their weights; each starts again when it runs out."""

    def __init__(
        self,
        prepared: PreparedMix,
        batch: BatchConfig,
        seed: int,
        loading: Loading,
        start: DataPosition,
    ) -> None:
        self._block = block = batch.longest_sequence
        self._digest, self._start = prepared.digest, start
        self._names = tuple(prepared.parts)
        self._keys = keys([one.digest for one in prepared.parts.values()])
        self._corpora = [
            _corpus_from(one, start.corpora.get(key), part_seed(seed, name), block)
            for key, (name, one) in zip(self._keys, prepared.parts.items(), strict=True)
        ]
        self.notes = tuple(
            f"{name}: {one.note}"
            for name, one in zip(self._names, self._corpora, strict=True)
            if one.note is not None
        )
        size = sum(one.train_bytes for one in prepared.parts.values())
        chosen = choose_loading(loading, size)
        self.tokens = tuple(
            _opened(one, name, chosen, block, corpus.left)
            for (name, one), corpus in zip(prepared.parts.items(), self._corpora, strict=True)
        )
        mix = start.mix
        same = mix is not None and (mix.digest, mix.block) == (self._digest, block)
        self._before = mix.tokens // block if mix is not None and same else 0
        self._order = MixOrder(
            seed,
            prepared.weights,
            [one.passes for one in self._corpora],
            batch.tokens_per_step // block,
            self._before,
        )

    def rows(self, positions: NDArray[np.int64], offsets: NDArray[np.int64], length: int) -> Tokens:
        first, last = int(positions[0]), int(positions[-1])
        parts, blocks = self._order.blocks(first, last)[:, positions - first]
        rows = np.empty((positions.size, length + 1), dtype=self.tokens[0].shards[0].dtype)
        for part in np.unique(parts):
            here = np.flatnonzero(parts == part)
            rows[here] = self.tokens[part].windows(blocks[here], offsets[here], length)
        return rows

    def epochs(self, position: int) -> dict[str, float]:
        """Return the epochs and shares of the corpora so far; ``data/epoch`` is the largest.

        Shares count from where the mix began.
        """
        counts, since = self._order.counts(position)
        whole, epochs, shares = max(1, self._before + position), {}, {}
        for name, one, count, turns in zip(self._names, self._corpora, counts, since, strict=True):
            epochs[f"data/epoch/{name}"] = one.passes.done(turns)
            shares[f"data/share/{name}"] = count / whole
        return {"data/epoch": max(epochs.values()), **epochs, **shares}

    def position(self, position: int) -> DataPosition:
        _, since = self._order.counts(position)
        moved = {
            key: one.position.moved(turns * self._block)
            for key, one, turns in zip(self._keys, self._corpora, since, strict=True)
        }
        tokens = (self._before + position) * self._block
        return DataPosition(
            corpora={**self._start.corpora, **moved},
            mix=MixProgress(digest=self._digest, block=self._block, tokens=tokens),
        )


def open_stream(
    prepared: PreparedData,
    batch: BatchConfig,
    seed: int,
    loading: Loading,
    start: DataPosition,
) -> TrainStream:
    """Open the training tokens, from ``start`` on.

    Raises:
        BadData: a corpus is shorter than one block, or a shard cannot be read.
    """
    if isinstance(prepared, PreparedMix):
        return MixStream(prepared, batch, seed, loading, start)
    return CorpusStream(prepared, batch.longest_sequence, seed, loading, start)


def _corpus_from(
    prepared: PreparedData, position: CorpusProgress | None, seed: int, block: int
) -> OpenCorpus:
    shards = [shard.tokens for shard in read_manifest(prepared.directory).train]
    return resume(position or CorpusProgress(), Pieces.of(shards), seed, block)


def _opened(
    prepared: PreparedData, name: str, loading: Loading, block: int, left: Pieces | None
) -> TrainTokens:
    try:
        return TrainTokens.open(prepared, loading, block, left)
    except BadData as error:
        raise BadData(f"data.corpus.parts.{name}: {error}") from None
