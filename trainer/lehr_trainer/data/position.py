"""Where a run is in its data: for each corpus, its epoch and what was taken of it, in tokens.

An epoch is one block length and one seed from its first token to its last, unless a fork changes
them. So it is described by cuts. The first cuts the whole corpus into blocks, and takes some of
them in the order of its seed. The next cuts what is left, into blocks of its own, and so on. What
is left is never stored: it follows from the cuts. The epoch after that is whole again.

Steps take whole blocks, so a checkpoint never lies within one.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray
from pydantic import BaseModel

from lehr_trainer.data.shuffle import Passes, shuffled

_BLOCKS_AT_ONCE = 2**22


class Cut(NamedTuple):
    """Blocks that were taken in the order of one seed."""

    seed: int
    block: int
    """Tokens of a block: the longest sequence."""
    tokens: int
    """Taken so far. Of the newest cut, this may be more than its epoch has, and then goes on in
    the next ones."""


class CorpusProgress(BaseModel, frozen=True):
    """What was taken of a corpus."""

    epoch: int = 0
    cuts: tuple[Cut, ...] = ()
    """Of this epoch, in their order."""

    def moved(self, tokens: int) -> CorpusProgress:
        """Return the position after ``tokens`` more."""
        *earlier, newest = self.cuts
        newest = newest._replace(tokens=newest.tokens + tokens)
        return CorpusProgress(epoch=self.epoch, cuts=(*earlier, newest))


class MixProgress(BaseModel, frozen=True):
    """How far the corpora of a mix were interleaved with these weights."""

    digest: str
    block: int
    tokens: int


class DataPosition(BaseModel, frozen=True):
    """What a checkpoint holds of the data order."""

    corpora: Mapping[str, CorpusProgress] = {}
    """By digest: of each corpus that the run or one of its ancestors trained on."""
    mix: MixProgress | None = None


def keys(digests: Sequence[str]) -> list[str]:
    """Return the keys of a mix' corpora in a position: a corpus may be part of it twice."""
    before = [digests[:number].count(digest) for number, digest in enumerate(digests)]
    return [f"{one}/{count}" if count else one for one, count in zip(digests, before, strict=True)]


class Pieces(NamedTuple):
    """Stretches of a corpus, ascending. A token is counted where its next one is the target."""

    starts: NDArray[np.int64]
    lengths: NDArray[np.int64]

    @classmethod
    def of(cls, shards: list[int]) -> Pieces:
        """Return the whole corpus; the last token of a shard is a target only."""
        sizes = np.array(shards, dtype=np.int64)
        return cls(np.cumsum(sizes) - sizes, np.maximum(sizes - 1, 0))

    def blocks(self, block: int) -> int:
        return int((self.lengths // block).sum())

    def without(self, cut: Cut, epoch: int) -> Pieces:
        """Return what is left once a cut's tokens are taken. Needs some 40 bytes for each block."""
        counts = self.lengths // cut.block
        first, taken = np.cumsum(counts) - counts, cut.tokens // cut.block
        gone = np.zeros(int(counts.sum()), dtype=bool)
        for start in range(0, taken, _BLOCKS_AT_ONCE):
            turns = np.arange(start, min(taken, start + _BLOCKS_AT_ONCE), dtype=np.int64)
            gone[shuffled(cut.seed, epoch, gone.size, turns)] = True
        numbers = np.flatnonzero(gone)
        homes = np.searchsorted(first, numbers, side="right") - 1
        holes = self.starts[homes] + (numbers - first[homes]) * cut.block
        # What is left begins where a piece begins or a block ends, and so on in turn.
        starts = np.sort(np.concatenate([self.starts, holes + cut.block]))
        lengths = np.sort(np.concatenate([holes, self.starts + self.lengths])) - starts
        return Pieces(starts[lengths > 0], lengths[lengths > 0])


@dataclass(frozen=True)
class OpenCorpus:
    """A corpus from a position on."""

    position: CorpusProgress
    """The same, with a cut of the run's own as the newest one."""
    passes: Passes
    left: Pieces | None
    """What the newest cut cuts; None for the whole corpus."""
    note: str | None
    """What a fork leaves out of this epoch."""


def resume(position: CorpusProgress, whole: Pieces, seed: int, block: int) -> OpenCorpus:
    """Go on in a corpus with this seed and block length.

    The newest cut goes on if they are its own. Otherwise what it left is cut again.
    """
    *earlier, newest = position.cuts or (Cut(seed, block, 0),)
    epoch, left, note = position.epoch, whole, None
    for cut in earlier:
        left = left.without(cut, epoch)
    over = newest.tokens - left.blocks(newest.block) * newest.block
    if newest.tokens and over >= 0:
        passed, rest = divmod(over, whole.blocks(newest.block) * newest.block)
        epoch, left, earlier = epoch + 1 + passed, whole, []
        newest = newest._replace(tokens=rest)
    if (newest.seed, newest.block) != (seed, block):
        if newest.tokens:
            left = left.without(newest, epoch)
            earlier.append(newest)
            note = _left_out(left, block)
            if not left.blocks(block):
                epoch, left, earlier = epoch + 1, whole, []
        newest = Cut(seed, block, 0)
    passes = Passes(
        seed,
        whole.blocks(block),
        epoch=epoch,
        left=left.blocks(block) if earlier else None,
        taken=newest.tokens // block,
        before=sum(cut.tokens for cut in earlier) / block,
    )
    position = CorpusProgress(epoch=epoch, cuts=(*earlier, newest))
    return OpenCorpus(position, passes, left if earlier else None, note)


def _left_out(left: Pieces, block: int) -> str | None:
    rest, tokens = int((left.lengths % block).sum()), int(left.lengths.sum())
    if not rest:
        return None
    return (
        f"{rest:,} of the {tokens:,} tokens that are left of this epoch are left out: they are in "
        f"pieces shorter than a sequence of {block:,}"
    )
