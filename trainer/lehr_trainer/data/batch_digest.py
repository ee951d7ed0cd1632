"""Digest of a batch: a number that shows whether two steps trained on the same sequences.

The digest is a sum over sequences (the multiset hash of Clarke et al., ASIACRYPT 2003). So it does
not depend on how ranks and micro-batches share a step, and ranks need only add their parts. The
hash of a sequence is a dot product of its tokens with fixed odd numbers, modulo 2**64, and then
SplitMix64's finalizer. It reads each token once, on the CPU.

A digest is below 2**52. So a float holds it exactly, as the value of a metric, and the int64 sum
over 2,048 ranks does not overflow. Two different batches have equal digests with a probability of
about 2**-52.
"""

from __future__ import annotations

from functools import lru_cache
from typing import Any

import numpy as np
from numpy.typing import NDArray

from lehr_trainer.data.shuffle import mix64

MODULUS = 2**52
"""Every digest is below it."""
_GOLDEN = np.uint64(0x9E3779B97F4A7C15)
"""The increment of SplitMix64."""


def sequences_digest(rows: NDArray[Any]) -> int:
    """Return the digest of sequences: the rows of an array of tokens, targets included."""
    length = rows.shape[1]
    # einsum multiplies and adds in one pass, without a copy of the tokens in 64 bits.
    hashes: NDArray[np.uint64] = np.einsum("ij,j->i", rows, _factors(length), dtype=np.uint64)
    hashes = mix64(hashes + np.uint64(length))
    return added(hashes.sum(dtype=np.uint64).item())


def added(*parts: int) -> int:
    """Return the digest of all sequences from the digests of parts of them."""
    return sum(parts) % MODULUS


@lru_cache(maxsize=16)
def _factors(length: int) -> NDArray[np.uint64]:
    """Return the factor of each position: odd, so that a change of one token always shows."""
    positions = np.arange(1, length + 1, dtype=np.uint64)
    return mix64(positions * _GOLDEN) | np.uint64(1)
