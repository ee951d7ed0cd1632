"""The model of loss over learning rate: a valley, the noise between seeds, and what was learned.

At ``u`` doublings above the best rate, the loss above the best is ``r * g(u) / g(1)`` with
``g(u) = (1 + (u / w)**2)**(p / 2) - 1``: a parabola within ``w`` doublings of the best rate, and
like ``u**p`` farther away. The rise ``r`` within the first doubling and the power ``p`` differ
between the sides. A curve is a row of eight numbers, the columns below.

Beside the noise between seeds, which grows with the rate, a mean loss is off from any such curve by
a share of its height (``MISFIT``), or, beyond a kink or where training broke, by any height
(``BROKEN``). ``KINDS`` is what other trainings teach of the last five columns: it is learned by
``tests/bench/lr_verdict.py --learn`` (docs/judgement.md).
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

from lehr.analysis.noise import Noise
from lehr.analysis.sampler import Array

BEST, LEVEL, RISE, SKEW, LEFT, RIGHT, WIDTH, NOISE = range(8)
"""Columns of a curve: log2 of its best rate; its lowest loss; the logarithms of ``r``, the mean of
both sides; of the right ``r`` over the left; of ``p`` on each side; of ``w``; and of one trial's
noise at the best rate (a standard deviation) over the mean ``r``.
"""
MISFIT = (0.15, 0.28)
"""How far a mean loss lies from the curve, as a share of its height: below and above the best rate
(one standard deviation)."""
BROKEN = (0.02, 0.06)  # Probability that a loss is above the curve by any height.
_GROWTH = (0.15, 0.1)  # Growth of the logarithm of the noise for each doubling of the rate.
_FAR = 3.0  # Doublings from the best rate at which the noise stops changing.
_ORDERS = 6.0  # Natural logarithms over which the height of a broken loss may lie.
CENTRED = 0.22
"""How far the best rate lies from the middle of those tried, as a share of their range (one
standard deviation): people lay sweeps around the rate that they expect."""
ALIKE = 0.75
"""Power of the doublings between rates with which each loss counts, where they are closer than one:
neighbours are off the curve alike. It was chosen on published sweeps of every rate."""
_CLOSEST = 0.4  # Doublings; closer rates count as if they were so far apart.
_WALL = 2.4
"""How steeply the probability of a rate without a loss falls with its height on the curve."""
_MOST_SEEDS = 6  # Degrees of freedom that the noise of other sweeps counts as, at most.


@dataclass(frozen=True)
class Kind:
    """A kind of training: the normal distribution of each column from ``SKEW`` on."""

    share: float
    mean: tuple[float, ...]
    deviation: tuple[float, ...]


KINDS = (
    Kind(0.4, (0.71, 0.03, 0.82, 0.43, -1.99), (0.48, 0.41, 0.57, 0.62, 0.52)),
    Kind(0.4, (-0.16, 0.73, 0.21, 0.58, 0.41), (0.6, 0.79, 0.59, 0.78, 0.43)),
    Kind(0.2, (0.3, 0.4, 0.7, 0.0, -1.0), (0.8, 0.7, 0.8, 0.7, 1.5)),
)
"""Published runs, which are large and smooth; small noisy trainings; and others than both."""


@dataclass(frozen=True)
class Trials:
    """The losses of a sweep, by log2 of the rate."""

    x: Array  # [M], ascending.
    means: Array  # [M]: mean loss.
    seeds: Array  # [M]: number of seeds.
    squares: Array  # [M]: sum of the squares of their differences from the mean.
    walls: tuple[float, ...]  # The nearest rates without a loss on each side of the best.
    noise: Noise | None = None  # Between seeds of the same training in other sweeps.

    @property
    def scale(self) -> float:
        """How far the lower half of the other losses lies above the lowest (geometric mean)."""
        above = np.sort(self.means - self.means.min())
        above = above[above > 1e-100]
        return float(np.exp(np.log(above[: (len(above) + 1) // 2]).mean())) if len(above) else 1.0

    @property
    def range(self) -> tuple[float, float]:
        """Where the best rate may lie: half a step beyond the rates tried, or up to a wall."""
        step = (self.x[-1] - self.x[0]) / (len(self.x) - 1) / 2
        best = self.x[self.means.argmin()]
        low = max((wall for wall in self.walls if wall < best), default=self.x[0] - step)
        high = min((wall for wall in self.walls if wall > best), default=self.x[-1] + step)
        return float(low), float(high)

    @property
    def weight(self) -> float:
        """How much each mean loss counts, up to 1."""
        apart = (self.x[-1] - self.x[0]) / (len(self.x) - 1)
        return float(np.clip(apart, _CLOSEST, 1.0) ** ALIKE)

    @property
    def middle(self) -> tuple[float, float]:
        """Where the best rate is expected among those tried: mean and standard deviation."""
        span = self.x[-1] - self.x[0]
        return float(self.x[0] + span / 2), float(CENTRED * span)


def excess(x: Array, curves: Array) -> Array:
    """Return the loss above the best one at rates, [N, M]."""
    from_best = x - curves[:, BEST, None]
    right = from_best > 0
    sign = np.where(right, 0.5, -0.5)
    power = np.exp(np.where(right, curves[:, RIGHT, None], curves[:, LEFT, None]))
    with np.errstate(all="ignore"):
        near = np.exp(-2 * curves[:, WIDTH, None])
        height = np.log(np.expm1(power / 2 * np.log1p(near * from_best**2)))
        height -= np.log(np.expm1(power / 2 * np.log1p(near)))
        rise = curves[:, RISE, None] + sign * curves[:, SKEW, None]
        return np.asarray(np.exp(np.minimum(rise + height, 230.0)))


def deviations(x: Array, curves: Array) -> tuple[Array, Array, Array]:
    """Return the excess, the noise of one trial, and the misfit of a mean, [N, M] each."""
    from_best = x - curves[:, BEST, None]
    right = from_best > 0
    growth = np.where(right, _GROWTH[1], _GROWTH[0]) * np.clip(from_best, -_FAR, _FAR)
    noise = np.exp(curves[:, RISE, None] + curves[:, NOISE, None] + growth)
    above = excess(x, curves)
    return above, noise, np.where(right, MISFIT[1], MISFIT[0]) * above


def log_likelihood(trials: Trials, curves: Array) -> Array:
    """Return the logarithm of the probability of the losses under each curve, [N]."""
    above, noise, misfit = deviations(trials.x, curves)
    level = curves[:, LEVEL, None]
    off = trials.means - level - above
    # Curves of the prior may be so steep that numbers overflow: they count as impossible.
    with np.errstate(all="ignore"):
        variance = noise**2 / trials.seeds + misfit**2 + 1e-300
        normal = -0.5 * (off**2 / variance + np.log(2 * math.pi * variance))
        height = np.where(off > 0, trials.means - level, np.inf)
        broken = -np.log(np.maximum(height, 1e-12 * trials.scale) * _ORDERS)
        share = np.where(trials.x > curves[:, BEST, None], BROKEN[1], BROKEN[0])
        total = np.logaddexp(np.log1p(-share) + normal, np.log(share) + broken).sum(axis=1)
        total *= trials.weight
        freedom = trials.seeds - 1
        total -= (trials.squares / noise**2 / 2 + freedom * np.log(noise)).sum(axis=1)
    if trials.noise is not None:
        own = curves[:, RISE] + curves[:, NOISE]
        least = 1e-6 * trials.scale  # A noise of zero is one that was rounded away.
        squares = np.exp(np.minimum(2 * (math.log(max(trials.noise.deviation, least)) - own), 300))
        total -= min(trials.noise.freedom, _MOST_SEEDS) * (squares / 2 + own)
    for wall in trials.walls:
        # A rate without a loss has a high one: at least about that of the better half of trials.
        high = excess(np.array([wall]), curves)[:, 0] / trials.scale
        total -= np.log1p(np.maximum(high, 1e-30) ** -_WALL)
    return np.asarray(np.where(np.isfinite(total), total, -np.inf))


def log_prior(trials: Trials, curves: Array) -> Array:
    """Return the logarithm of the prior density of each curve, but for a constant, [N].

    Level and rise follow the losses' own scale, so that it does not matter.
    """
    low, high = trials.range
    inside = (curves[:, BEST] >= low) & (curves[:, BEST] <= high)
    centre, width = _weak(trials)
    weak = (((curves[:, :SKEW] - centre) / width) ** 2).sum(axis=1) / -2
    return np.asarray(np.where(inside, weak + log_shape(curves[:, SKEW:]), -np.inf))


def log_shape(shapes: Array) -> Array:
    """Return the logarithm of the prior density of the columns from ``SKEW`` on, [N]."""
    kinds = [
        math.log(kind.share)
        - sum(map(math.log, kind.deviation))
        - (((shapes - kind.mean) / kind.deviation) ** 2).sum(axis=1) / 2
        for kind in KINDS
    ]
    return np.asarray(np.logaddexp.reduce(kinds))


def prior_curves(trials: Trials, count: int, draw: np.random.Generator) -> Array:
    """Draw curves from the prior, [count, 8]."""
    curves = np.empty((count, 8))
    centre, width = _weak(trials)
    curves[:, :SKEW] = centre + width * draw.standard_normal((count, 3))
    outside = (curves[:, BEST] < trials.range[0]) | (curves[:, BEST] > trials.range[1])
    curves[outside, BEST] = draw.uniform(*trials.range, outside.sum())
    curves[:, SKEW:] = prior_shapes(count, draw)
    return curves


def prior_shapes(count: int, draw: np.random.Generator) -> Array:
    """Draw the columns from ``SKEW`` on from the prior, [count, 5]."""
    kind = draw.choice(len(KINDS), count, p=[kind.share for kind in KINDS])
    means, widths = (
        np.array(part) for part in ([k.mean for k in KINDS], [k.deviation for k in KINDS])
    )
    return np.asarray(means[kind] + widths[kind] * draw.standard_normal((count, 5)))


def _weak(trials: Trials) -> tuple[Array, Array]:
    """Return mean and standard deviation of best rate, level and rise."""
    reach = max(1.0, float(trials.x[-1] - trials.x[0]) / 4)
    rise = math.log(trials.scale / reach)
    middle, span = trials.middle
    centre = np.array([middle, trials.means.min(), rise])
    return centre, np.array([span, trials.scale, 2.0])
