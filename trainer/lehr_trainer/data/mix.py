"""The order of a mix of corpora: a pure function of seed and position.

Two steps lead from a position to a block of a corpus. ``Interleave`` gives the corpus that has its
turn, and its number of earlier turns. The corpus' own order, with its own epochs, then gives the
block. Before that, the positions within a step are shuffled, so that ranks and micro-batches do not
always have the same corpora.
"""

from __future__ import annotations

import hashlib
import heapq
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from fractions import Fraction
from math import gcd, lcm

import numpy as np
from numpy.typing import NDArray

from lehr_trainer.data.shuffle import Order, Passes, mix64

_LARGEST_SUM = 2**31
"""Of whole weights: a product of two numbers below it fits into 64 bits."""
_EPOCHS_AT_ONCE = 64


def whole_weights(weights: Mapping[str, float]) -> dict[str, int]:
    """Return whole numbers in the proportion of ``weights``, as short decimals name them.

    0.7 and 0.3 become 7 and 3. If the numbers would be too large, they are rounded to about one
    part in a thousand million.
    """
    exact = {name: Fraction(repr(float(weight))) for name, weight in weights.items()}
    scale = lcm(*(one.denominator for one in exact.values()))
    whole = {name: int(one * scale) for name, one in exact.items()}
    common = gcd(*whole.values())
    whole = {name: one // common for name, one in whole.items()}
    total = sum(whole.values())
    if total < _LARGEST_SUM:
        return whole
    return {name: max(1, one * 2**30 // total) for name, one in whole.items()}


@dataclass(frozen=True)
class _Split:
    """A node of the tree whose turns are shared by two nodes: further splits, or parts."""

    weight: int
    left_weight: int
    left: _Split | int
    right: _Split | int


class Interleave:
    """Whose turn it is at each position, in exact proportion to whole weights.

    The turns of a node of a Huffman tree are divided between its two children: after n turns, the
    left one has had n times its share, rounded to the nearest whole number. Each division is off
    by a half at most, and weights grow at least as Fibonacci's numbers on the way up. So each part
    has had its exact share of any first n turns, to within less than two, and of each period (the
    sum of the weights) without an error. All of it is arithmetic: no table, however long the run.
    """

    def __init__(self, weights: Sequence[int]) -> None:
        self.parts = len(weights)
        # The number lets equal weights compare by their order.
        heap: list[tuple[int, int, _Split | int]] = [
            (weight, part, part) for part, weight in enumerate(weights)
        ]
        heapq.heapify(heap)
        for number in range(self.parts, 2 * self.parts - 1):
            right_weight, _, right = heapq.heappop(heap)
            left_weight, _, left = heapq.heappop(heap)
            weight = left_weight + right_weight
            heapq.heappush(heap, (weight, number, _Split(weight, left_weight, left, right)))
        self._root = heap[0][2]

    def turns(self, positions: NDArray[np.int64]) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        """Return for each position whose turn it is, and how many turns that part had before."""
        parts, before = np.empty_like(positions), np.empty_like(positions)
        pending = [(self._root, np.arange(positions.size), positions)]
        while pending:
            node, where, turns = pending.pop()
            if isinstance(node, int):
                parts[where], before[where] = node, turns
                continue
            lefts = _of_left(node, turns)
            is_left = _of_left(node, turns + 1) > lefts
            pending.append((node.left, where[is_left], lefts[is_left]))
            pending.append((node.right, where[~is_left], (turns - lefts)[~is_left]))
        return parts, before

    def counts(self, position: int) -> list[int]:
        """Return how many of the first ``position`` turns each part has."""
        found = [0] * self.parts
        pending = [(self._root, np.array([position], dtype=np.int64))]
        while pending:
            node, turns = pending.pop()
            if isinstance(node, int):
                found[node] = int(turns[0])
                continue
            lefts = _of_left(node, turns)
            pending += [(node.left, lefts), (node.right, turns - lefts)]
        return found


class MixOrder(Order):
    """The order of a mix: for each position, the corpus and its block."""

    def __init__(
        self,
        seed: int,
        weights: Mapping[str, int],
        passes: Sequence[Passes],
        window: int,
        start: int = 0,
    ) -> None:
        """Set up the order, with ``start`` blocks of the mix before position 0.

        ``weights`` are whole numbers by the corpus' name; ``passes`` begin at ``start``; positions
        are shuffled within a ``window`` only, the blocks of a step.
        """
        self.interleave = Interleave(list(weights.values()))
        self._passes, self._window, self._start = list(passes), window, start
        self._turns_before = self.interleave.counts(start)
        self._key = np.uint64(_derived(f"lehr mix/{seed}"))
        sizes, total = [one.size for one in passes], sum(weights.values())
        # A small corpus has a new order in each of its epochs, so few of them at once.
        fewest = min(
            size * total // weight for size, weight in zip(sizes, weights.values(), strict=True)
        )
        most = max(window, min(4096, _EPOCHS_AT_ONCE * fewest))
        super().__init__(most // window * window)

    def _compute(self, first: int, count: int) -> NDArray[np.int64]:
        """Return [2, count]: corpora and blocks; ``first`` and ``count`` are whole steps."""
        positions = np.arange(first, first + count, dtype=np.int64)
        places = positions + self._start
        keys = mix64(places.view(np.uint64) ^ self._key)
        order = np.lexsort((keys, positions // self._window))
        parts, turns = self.interleave.turns(places[order])
        blocks = np.empty_like(turns)
        for part, passes in enumerate(self._passes):
            here = parts == part
            blocks[here] = passes.blocks(turns[here] - self._turns_before[part])
        return np.stack([parts, blocks])

    def counts(self, position: int) -> tuple[list[int], list[int]]:
        """Return how many blocks before ``position`` each corpus has: of the mix, and from its
        ``start`` on.
        """
        counts = self.interleave.counts(self._start + position)
        return counts, [
            count - before for count, before in zip(counts, self._turns_before, strict=True)
        ]


def part_seed(seed: int, name: str) -> int:
    """Return the seed of a corpus' order: named, so that it stays if others join the mix."""
    return _derived(f"lehr mix/{seed}/{name}")


def _of_left(node: _Split, turns: NDArray[np.int64]) -> NDArray[np.int64]:
    """Return how many of a node's first ``turns`` turns are the left child's, without overflow."""
    periods, rest = np.divmod(turns, node.weight)
    share, whole = node.left_weight, node.weight
    found: NDArray[np.int64] = periods * share + (rest * share + whole // 2) // whole
    return found


def _derived(text: str) -> int:
    return int.from_bytes(hashlib.blake2b(text.encode(), digest_size=8).digest(), "little")
