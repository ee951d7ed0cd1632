"""The order of training data: a pure function of (seed, epoch, index), with nothing to store.

A shuffled list of a corpus's blocks would be gigabytes, and state to save. A permutation
that is computed instead needs neither: a Feistel network over a rectangle that just holds
``size`` points, walked again for the few points outside (Black and Rogaway, "Ciphers with
Arbitrary Finite Domains", 2002). All of it is arithmetic on whole arrays.
"""

from __future__ import annotations

import hashlib
import threading
from abc import ABC, abstractmethod
from collections import OrderedDict
from dataclasses import dataclass
from functools import lru_cache
from math import isqrt

import numpy as np
from numpy.typing import NDArray

_ROUNDS = 8
"""Even, so that both halves are mixed equally often."""


def shuffled(seed: int, epoch: int, size: int, indices: NDArray[np.int64]) -> NDArray[np.int64]:
    """Return which of ``size`` blocks are at ``indices`` of this epoch's order.

    Over all indices from 0 to size - 1 each block appears exactly once.
    """
    width = isqrt(size - 1) + 1 if size > 1 else 1
    height = -(-size // width)
    keys = _round_keys(seed, epoch)
    places = _encipher(indices.astype(np.uint64), width, height, keys)
    # The rectangle has at most `width` points too many, so few points walk, and rarely twice.
    outside = np.flatnonzero(places >= size)
    while outside.size:
        places[outside] = _encipher(places[outside], width, height, keys)
        outside = outside[places[outside] >= size]
    return places.astype(np.int64)


class Order(ABC):
    """What comes at each position of an endless sequence.

    A range is computed at once and kept, since a few thousand positions cost little more than one.
    """

    def __init__(self, stretch: int) -> None:
        """Keep ranges of ``stretch`` positions."""
        self._stretch = stretch
        self._kept: OrderedDict[int, NDArray[np.int64]] = OrderedDict()
        self._lock = threading.Lock()

    def blocks(self, first: int, last: int) -> NDArray[np.int64]:
        """Return what is at positions ``first`` to ``last``, both included, along the last axis."""
        numbers = range(first // self._stretch, last // self._stretch + 1)
        stretches = [self._get(number) for number in numbers]
        together = stretches[0] if len(stretches) == 1 else np.concatenate(stretches, axis=-1)
        start = numbers[0] * self._stretch
        return together[..., first - start : last - start + 1]

    def _get(self, number: int) -> NDArray[np.int64]:
        with self._lock:
            if number not in self._kept:
                self._kept[number] = self._compute(number * self._stretch, self._stretch)
                if len(self._kept) > 8:
                    self._kept.popitem(last=False)
            return self._kept[number]

    @abstractmethod
    def _compute(self, first: int, count: int) -> NDArray[np.int64]:
        """Compute the values at ``count`` positions from ``first`` on."""


@dataclass(frozen=True)
class Passes:
    """A corpus' blocks, epoch after epoch, from a place in one of them on."""

    seed: int
    size: int
    """Blocks of a whole epoch."""
    epoch: int = 0
    """The epoch in which it begins."""
    left: int | None = None
    """Blocks of that epoch, if these are cut from what earlier cuts left of it. Their numbers
    follow those of a whole epoch."""
    taken: int = 0
    """Blocks of that epoch that were taken before it begins."""
    before: float = 0.0
    """Blocks of this length that earlier cuts took of that epoch."""

    def blocks(self, turns: NDArray[np.int64]) -> NDArray[np.int64]:
        """Return the number of the block at each turn; the first turn is 0."""
        first = self.size if self.left is None else self.left
        later, indices = np.divmod(turns + (self.taken - first), self.size)
        here = later < 0
        later += 1
        later[here], indices[here] = 0, turns[here] + self.taken
        numbers = np.empty_like(turns)
        for epoch in np.unique(later):
            here = later == epoch
            size = self.size if epoch else first
            numbers[here] = shuffled(self.seed, self.epoch + int(epoch), size, indices[here])
            if self.left is not None and not epoch:
                numbers[here] += self.size
        return numbers

    def done(self, turns: int) -> float:
        """Return how often the corpus was passed after ``turns`` turns."""
        first = self.size if self.left is None else self.left
        over = self.taken + turns - first
        if over >= 0:
            return ((self.epoch + 1) * self.size + over) / self.size
        whole = self.before + first
        return (self.epoch * whole + self.before + self.taken + turns) / whole


class SampleOrder(Order):
    """All epochs' orders of a corpus as one sequence: the block at any position."""

    def __init__(self, passes: Passes) -> None:
        super().__init__(min(4096, max(64, passes.size)))
        self._passes = passes

    def _compute(self, first: int, count: int) -> NDArray[np.int64]:
        return self._passes.blocks(np.arange(first, first + count, dtype=np.int64))


def _encipher(
    points: NDArray[np.uint64], width: int, height: int, keys: tuple[np.uint64, ...]
) -> NDArray[np.uint64]:
    """Permute the rectangle: each round adds a hash of one coordinate to the other."""
    across, down = np.divmod(points, np.uint64(height))
    for number, key in enumerate(keys):
        if number % 2 == 0:
            across = (across + mix64(down ^ key) % np.uint64(width)) % np.uint64(width)
        else:
            down = (down + mix64(across ^ key) % np.uint64(height)) % np.uint64(height)
    result: NDArray[np.uint64] = across * np.uint64(height) + down
    return result


def mix64(values: NDArray[np.uint64]) -> NDArray[np.uint64]:
    """Apply SplitMix64's finalizer (Steele, Lea, Flood, 2014); it wraps around on purpose."""
    values = (values ^ (values >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    values = (values ^ (values >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    mixed: NDArray[np.uint64] = values ^ (values >> np.uint64(31))
    return mixed


@lru_cache(maxsize=64)
def _round_keys(seed: int, epoch: int) -> tuple[np.uint64, ...]:
    digest = hashlib.blake2b(f"lehr order/{seed}/{epoch}".encode(), digest_size=8 * _ROUNDS)
    keys = np.frombuffer(digest.digest(), dtype="<u8")
    return tuple(np.uint64(key) for key in keys)
