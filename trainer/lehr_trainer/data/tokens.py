"""Training tokens: windows read from shards, and their endless stream, of a corpus or a mix."""

from __future__ import annotations

import mmap
import os
from abc import ABC, abstractmethod
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any, Literal

import numpy as np
import psutil
from numpy.lib.stride_tricks import sliding_window_view
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
from lehr_trainer.data.shuffle import SampleOrder
from lehr_trainer.data.token_dataset import PreparedData, PreparedMix, read_manifest
from lehr_trainer.data.tokenizers import token_ids
from lehr_trainer.errors import BadData

Loading = Literal["auto", "memmap", "preload"]
Tokens = NDArray[Any]
"""uint16 or uint32."""


@dataclass(frozen=True)
class TrainTokens:
    """The training tokens of a corpus: one array per shard, cut into blocks.

    A block is ``block`` tokens to predict from, and the one after them. Blocks do not cross shards,
    so a shard's last few tokens (fewer than a block) are left out. The blocks of ``left`` have the
    numbers from ``blocks`` on.
    """

    shards: tuple[Tokens, ...]
    names: tuple[str, ...]
    vocab_size: int
    masked: bool
    """Whether tokens have ``MASKED`` set where they do not count."""
    block: int
    blocks: int
    """Of the whole corpus."""
    first_tokens: NDArray[np.int64]
    """Place of each shard's first token."""
    starts: NDArray[np.int64]
    """Place of the first token of each piece: of the shards, then of what is left."""
    first_blocks: NDArray[np.int64]
    """Number of the first block of each piece."""
    loading: Literal["memmap", "preload"]
    _views: dict[tuple[int, int], Tokens] = field(default_factory=dict, repr=False)
    """All windows of a shard, by length: views, which take time to make but no memory."""

    @classmethod
    def open(
        cls, prepared: PreparedData, loading: Loading, block: int, left: Pieces | None = None
    ) -> TrainTokens:
        """Map the shards, or read them into memory; ``left`` is cut into further blocks.

        Raises:
            BadData: the corpus is shorter than one block, or a shard cannot be read.
        """
        manifest = read_manifest(prepared.directory)
        paths = [prepared.directory / shard.name for shard in manifest.train]
        size = sum(path.stat().st_size for path in paths)
        chosen = choose_loading(loading, size)
        read = partial(_map, total=size) if chosen == "memmap" else _read
        with ThreadPoolExecutor(max_workers=min(8, os.cpu_count() or 1)) as pool:
            shards = tuple(pool.map(lambda path: read(path, prepared.dtype), paths))
        whole = Pieces.of([shard.size for shard in shards])
        blocks = whole.blocks(block)
        if blocks == 0:
            raise BadData(
                f"the corpus has {prepared.tokens:,} training tokens, fewer than one sequence of "
                f"{block:,} and its target; take a larger corpus or a shorter "
                "batch.sequence_length"
            )
        starts, lengths = whole
        if left is not None:
            starts = np.concatenate([starts, left.starts])
            lengths = np.concatenate([lengths, left.lengths])
        counts = lengths // block
        return cls(
            shards=shards,
            names=tuple(str(path) for path in paths),
            vocab_size=prepared.vocab_size,
            masked=prepared.masked,
            block=block,
            blocks=blocks,
            first_tokens=whole.starts,
            starts=starts,
            first_blocks=np.cumsum(counts) - counts,
            loading=chosen,
        )

    def windows(self, blocks: NDArray[np.int64], offsets: NDArray[np.int64], length: int) -> Tokens:
        """Read ``length + 1`` tokens from each block, from ``offsets`` tokens into it.

        One gather for each shard involved; no Python work per sequence.
        """
        pieces = np.searchsorted(self.first_blocks, blocks, side="right") - 1
        places = self.starts[pieces] + (blocks - self.first_blocks[pieces]) * self.block + offsets
        if len(self.shards) == 1:
            return self._gather(0, places, length)
        homes = np.searchsorted(self.first_tokens, places, side="right") - 1
        starts = places - self.first_tokens[homes]
        rows = np.empty((blocks.size, length + 1), dtype=self.shards[0].dtype)
        for shard in np.unique(homes):
            here = np.flatnonzero(homes == shard)
            rows[here] = self._gather(int(shard), starts[here], length)
        return rows

    def _gather(self, shard: int, starts: NDArray[np.int64], length: int) -> Tokens:
        key = (shard, length)
        if key not in self._views:
            self._views[key] = sliding_window_view(self.shards[shard], length + 1)
        rows: Tokens = self._views[key][starts]
        largest = int((token_ids(rows) if self.masked else rows).max())
        if largest >= self.vocab_size:
            # On a GPU this would be a device-side assertion without a name.
            raise BadData(
                f"{self.names[shard]} holds token {largest}, outside the vocabulary of "
                f"{self.vocab_size}; delete {Path(self.names[shard]).parent} and the data is "
                "prepared again"
            )
        return rows


def choose_loading(loading: Loading, size: int) -> Literal["memmap", "preload"]:
    """Resolve auto: memory, for a rank that is alone on its machine and has twice of it free.

    Several ranks share one map: each would read a copy of its own.
    """
    if loading != "auto":
        return loading
    alone = int(os.environ.get("LOCAL_WORLD_SIZE", "1")) == 1
    return "preload" if alone and size <= free_memory() / 2 else "memmap"


def free_memory() -> int:
    """Return the bytes that this process may still use, within machine and container."""
    free = int(psutil.virtual_memory().available)
    group = Path("/sys/fs/cgroup")
    try:
        limit = (group / "memory.max").read_text(encoding="ascii").strip()
        used = int((group / "memory.current").read_text(encoding="ascii"))
        counts = (group / "memory.stat").read_text(encoding="ascii").split()
        # Unused page cache counts as used, and is released on demand.
        used -= int(counts[counts.index("inactive_file") + 1])
    except (OSError, ValueError):
        return free
    return free if limit == "max" else min(free, max(0, int(limit) - used))


def _map(path: Path, dtype: str, *, total: int) -> Tokens:
    """Map a shard of a corpus of ``total`` bytes; all ranks of a machine share its pages."""
    with path.open("rb") as file:
        mapped = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)
    free = free_memory()
    if len(mapped) > free and hasattr(mmap, "MADV_RANDOM"):
        # Too large for the page cache: reading ahead would fetch unused data.
        mapped.madvise(mmap.MADV_RANDOM)
    elif total <= free / 2 and hasattr(mmap, "MADV_WILLNEED"):
        # Read once, in order, while the run starts; batches then wait for no disk.
        mapped.madvise(mmap.MADV_WILLNEED)
    return np.frombuffer(mapped, dtype=dtype)


def _read(path: Path, dtype: str) -> Tokens:
    tokens = np.empty(path.stat().st_size // np.dtype(dtype).itemsize, dtype=dtype)
    with path.open("rb", buffering=0) as file:
        view = tokens.view(np.uint8).data
        filled = 0
        while filled < len(view):
            count = file.readinto(view[filled:])
            if not count:
                raise BadData(f"{path} ended after {filled:,} of {len(view):,} bytes")
            filled += count
    return tokens


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
        # A part whose tokens are masked has wider ones than the others.
        self._dtype = np.result_type(*(one.shards[0].dtype for one in self.tokens))
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
        rows = np.empty((positions.size, length + 1), dtype=self._dtype)
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
    prepared: PreparedData, batch: BatchConfig, seed: int, loading: Loading, start: DataPosition
) -> TrainStream:
    """Open the training tokens, from ``start`` on.

    Raises:
        BadData: a corpus is shorter than one block, or a shard cannot be read.
    """
    if isinstance(prepared, PreparedMix):
        return MixStream(prepared, batch, seed, loading, start)
    return CorpusStream(prepared, batch.longest_sequence, seed, loading, start)


def position_after(
    prepared: PreparedData, batch: BatchConfig, seed: int, start: DataPosition, steps: int
) -> DataPosition:
    """Return the position after the data of so many steps from ``start`` on."""
    stream = open_stream(prepared, batch, seed, "memmap", start)
    return stream.position(steps * batch.tokens_per_step // batch.longest_sequence)


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
