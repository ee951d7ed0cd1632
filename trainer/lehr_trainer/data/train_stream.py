"""The training data as one endless stream of blocks: of a corpus, or of a mix."""

from __future__ import annotations

from abc import ABC, abstractmethod

import numpy as np
from numpy.typing import NDArray

from lehr_trainer.configs.train import BatchConfig
from lehr_trainer.data.mix import MixOrder
from lehr_trainer.data.prepared_mix import PreparedMix
from lehr_trainer.data.shuffle import SampleOrder
from lehr_trainer.data.token_dataset import PreparedData
from lehr_trainer.data.tokens import Loading, Tokens, TrainTokens, choose_loading
from lehr_trainer.errors import BadData


class TrainStream(ABC):
    """All epochs' blocks, end to end. A block is the longest sequence of the run."""

    tokens: tuple[TrainTokens, ...]
    """Of each corpus."""

    @abstractmethod
    def rows(self, positions: NDArray[np.int64], offsets: NDArray[np.int64], length: int) -> Tokens:
        """Read ``length + 1`` tokens of the block at each position, from ``offsets`` into it.

        Positions ascend, without gaps.
        """

    @abstractmethod
    def epochs(self, position: int) -> dict[str, float]:
        """Return how often the blocks before ``position`` pass over the data, by metric."""


class CorpusStream(TrainStream):
    """One corpus; each epoch in an order of its own."""

    def __init__(self, prepared: PreparedData, block: int, seed: int, loading: Loading) -> None:
        self.tokens = (TrainTokens.open(prepared, loading, block),)
        self._order = SampleOrder(seed, self.tokens[0].blocks)

    def rows(self, positions: NDArray[np.int64], offsets: NDArray[np.int64], length: int) -> Tokens:
        first, last = int(positions[0]), int(positions[-1])
        blocks = self._order.blocks(first, last)[positions - first]
        return self.tokens[0].windows(blocks, offsets, length)

    def epochs(self, position: int) -> dict[str, float]:
        return {"data/epoch": position / self.tokens[0].blocks}


class MixStream(TrainStream):
    """Several corpora in proportion to their weights; each starts again when it runs out."""

    def __init__(
        self, prepared: PreparedMix, batch: BatchConfig, seed: int, loading: Loading
    ) -> None:
        block = batch.longest_sequence
        size = sum(one.train_bytes for one in prepared.parts.values())
        chosen = choose_loading(loading, size)
        self._names = tuple(prepared.parts)
        self.tokens = tuple(
            _opened(one, name, chosen, block) for name, one in prepared.parts.items()
        )
        self._order = MixOrder(
            seed,
            prepared.weights,
            [one.blocks for one in self.tokens],
            batch.tokens_per_step // block,
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
        """Return the epochs and shares of the corpora so far; ``data/epoch`` is the largest."""
        counts = dict(zip(self._names, self._order.interleave.counts(position), strict=True))
        blocks = dict(zip(self._names, (one.blocks for one in self.tokens), strict=True))
        epochs = {name: count / blocks[name] for name, count in counts.items()}
        return {
            "data/epoch": max(epochs.values()),
            **{f"data/epoch/{name}": epoch for name, epoch in epochs.items()},
            **{f"data/share/{name}": count / max(1, position) for name, count in counts.items()},
        }


def open_stream(
    prepared: PreparedData, batch: BatchConfig, seed: int, loading: Loading
) -> TrainStream:
    """Open the training tokens.

    Raises:
        BadData: a corpus is shorter than one block, or a shard cannot be read.
    """
    if isinstance(prepared, PreparedMix):
        return MixStream(prepared, batch, seed, loading)
    return CorpusStream(prepared, batch.longest_sequence, seed, loading)


def _opened(prepared: PreparedData, name: str, loading: Loading, block: int) -> TrainTokens:
    try:
        return TrainTokens.open(prepared, loading, block)
    except BadData as error:
        raise BadData(f"data.corpus.parts.{name}: {error}") from None
