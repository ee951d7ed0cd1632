"""Downsampling of a series for a chart: smooth it, then reduce it to buckets. Pure numpy."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from lehr.store.streams.points import Floats, Ints

_BLOCK = 32
"""How many values a block has: each level of the recursion takes as many steps in Python."""


@dataclass(frozen=True)
class Reduced:
    """A reduced series; ``last`` holds the index of each bucket's last point in the input."""

    last: Ints
    low: Floats
    high: Floats


def smooth(values: Floats, weight: float) -> Floats:
    """Smooth by a debiased exponential moving average, as W&B and TensorBoard do.

    ``s[n] = w s[n-1] + (1-w) y[n]``, divided by ``1 - w^(n+1)``. NaN and infinities pass
    unchanged and do not enter the average.
    """
    if weight == 0.0 or len(values) == 0:
        return values
    finite = np.isfinite(values)
    if finite.all():
        return _debiased(values, weight)
    smoothed = values.copy()
    smoothed[finite] = _debiased(values[finite], weight)
    return smoothed


def reduce(x: Floats, y: Floats, points: int) -> Reduced:
    """Reduce to buckets of equal width over the range of ascending ``x``; omit empty ones.

    ``low`` and ``high`` span a bucket's values without NaN; they are NaN if all values are.
    """
    edges = np.linspace(x[0], x[-1], points + 1)
    starts = np.unique(np.searchsorted(x, edges[:-1], side="left"))
    starts = starts[starts < len(x)]
    ends = np.append(starts[1:], len(x))
    return Reduced(
        last=(ends - 1).astype(np.int64),
        low=np.fmin.reduceat(y, starts),
        high=np.fmax.reduceat(y, starts),
    )


def _debiased(values: Floats, weight: float) -> Floats:
    averages = (1.0 - weight) * _decayed(values, weight)
    # Past this many values the correction rounds to exactly 1.
    count = min(len(values), int(40.0 / (1.0 - weight)) + 1)
    averages[:count] /= -np.expm1(np.log(weight) * np.arange(1, count + 1))
    return averages


def _decayed(values: Floats, weight: float) -> Floats:
    """Compute ``s[n] = w s[n-1] + y[n]`` from ``s[-1] = 0``, for all blocks at once.

    Within a block it goes value by value. The sum that each block carries into the next follows
    the same recursion, over the blocks' last sums with the weight of a whole block.
    """
    count = len(values)
    blocks = -(-count // _BLOCK)
    padded = np.zeros(blocks * _BLOCK)
    padded[:count] = values
    sums = padded.reshape(blocks, _BLOCK)
    for place in range(1, _BLOCK):
        sums[:, place] += weight * sums[:, place - 1]
    if blocks > 1:
        powers: Floats = np.power(weight, np.arange(1.0, _BLOCK + 1.0))
        carried = np.zeros(blocks)
        carried[1:] = _decayed(sums[:-1, -1], float(powers[-1]))
        sums += carried[:, None] * powers
    return padded[:count]
