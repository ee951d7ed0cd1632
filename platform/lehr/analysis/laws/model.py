"""The model of the final loss over size, tokens, batch and decided values.

- The best loss is ``E + A N^-alpha + B D^-beta`` for N parameters without embeddings and D tokens
  (Hoffmann et al. 2022, arXiv:2203.15556). A training's own values add what they cost.
- The rate costs what the valley of ``lr_valley`` says. Its bottom moves with powers of width, depth
  and tokens, and with the batch: up to a knee, and not beyond it (the critical batch: McCandlish et
  al. 2018, arXiv:1812.06162). The knee moves with powers of tokens and size.
- The batch costs a parabola in its logarithm, whose bottom lies near the knee; any other value a
  parabola that does not move.
- Each rung is off the law by an own deviation of its loss and of its valley's bottom.

What the loss depends on linearly is integrated exactly: E, A and B, and the rungs' deviations (of
the bottom to first order). The rest is sampled: a draw is a row of the columns below and two for
each other value. Of a fitted law it goes on with the three of the best loss and two of each rung.
"""

from __future__ import annotations

import math
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from lehr.analysis import lr_valley
from lehr.analysis.laws.question import Field
from lehr.analysis.lr_rules import Setting

Array = NDArray[np.float64]

# Logarithms of the powers of size and tokens, and of the rungs' deviations as a share of the loss.
ALPHA, BETA, TAU = range(3)
# log2 of the target's best rate at the middle batch; its powers (of the batch: up to the knee).
BEST, PER_WIDTH, PER_DEPTH, PER_TOKENS, PER_BATCH = range(3, 8)
# log2 of the target's knee over the middle batch; its powers; how the logarithm of each rise moves
# with a doubling of the tokens.
KNEE, KNEE_TOKENS, KNEE_SIZE, RISE_TOKENS = range(8, 12)
# The columns of ``lr_valley`` from ``RISE`` on.
RISE, VALLEY, _SHAPE = 12, slice(12, 18), slice(13, 18)
# Doublings from the knee to the best batch; logarithms of what a doubling of the batch costs over
# one of the rate, and of the right side's cost over the left's.
OFFSET, BATCH_RISE, BATCH_SKEW = range(18, 21)
COLUMNS = 21
# The target's best loss; the parts of it that more parameters would take away, and more tokens.
LINEAR = 3

# Mean and standard deviation by published runs (docs/campaign.md), of the power of width beside the
# one of the parametrization, of the knee beside the published best batch.
_PRIOR: dict[int, tuple[float, float]] = {
    ALPHA: (math.log(0.3), 0.35),
    BETA: (math.log(0.32), 0.35),
    TAU: (math.log(0.0025), 0.6),
    PER_WIDTH: (0.0, 0.25),
    PER_DEPTH: (-0.5, 0.25),
    PER_TOKENS: (0.2, 0.15),
    PER_BATCH: (0.75, 0.2),
    KNEE: (0.0, 1.0),
    KNEE_TOKENS: (0.6, 0.12),
    KNEE_SIZE: (-0.2, 0.25),
    RISE_TOKENS: (-0.25, 0.12),
    OFFSET: (0.3, 0.4),
    BATCH_RISE: (0.0, 0.6),
    BATCH_SKEW: (0.0, 0.6),
}
_BOTTOM = 0.15  # Standard deviation of a rung's own best rate, in doublings.
_PARTS = (0.17, 0.1)  # Of each part of the loss that more parameters or tokens would take away.
_WIDER = 2.5  # Factor of these standard deviations where published runs do not count.
_RISE = 0.006  # Share of the loss that a doubling of a value costs, within a factor of e.
_SHARP = 3.0  # How sharp the knee is: it turns within about 1 / this doublings on each side.
_MISFIT = 0.15  # How far a mean loss lies from a parabola, as a share of its height.
_ODD = 2.5  # Standard deviations above the law from which a loss counts less: it was disturbed.
_WALL = 2.4  # As in ``lr_valley``: how steeply a divergence's chance falls with the rate's height.
_STEP = 0.02  # Doublings over which the slope of a valley is taken.
_SIDE = 0.01  # Height, over the rise, that a divergence at a rate below the best counts as.


class Coordinates(NamedTuple):
    """Places of trainings, [M] each: log2 of what they have over the target, of the batch over the
    middle one, of the rate; other values, [M, O], as shares of their ranges from -2 to 2; and the
    rung whose own deviations count.
    """

    width: Array
    depth: Array
    size: Array
    tokens: Array
    batch: Array
    rate: Array
    others: Array
    rung: NDArray[np.intp]


class Losses(NamedTuple):
    """What was measured, by ascending rung, [M] each: means over seeds, the number of these, the
    squares of their differences, the variance of means that are forecasts; what diverged.
    """

    places: Coordinates
    means: Array
    seeds: Array
    squares: Array
    doubt: Array
    walls: Coordinates


class Model:
    """The prior of a target's law, and the likelihood of losses."""

    def __init__(
        self, target: Setting, fields: tuple[Field, ...], losses: Losses, *, published: bool
    ) -> None:
        """Count published runs as a prior, or not."""
        others = sum(field.role == "other" for field in fields)
        ends = ((math.log2(f.low), math.log2(f.high)) for f in fields if f.role == "rate")
        rates = next(ends, None)
        self.rates, self.losses, self.stop = rates, losses, COLUMNS + 2 * others
        # The lowest loss, to which others are related.
        self.loss = max(abs(float(losses.means.min())), 1e-6) if len(losses.means) else 1.0
        wider = 1.0 if published else _WIDER
        self.bottom = wider * _BOTTOM
        part, doubt = _PARTS
        self.linear = np.array([1.0, part, part]) * self.loss
        self.linear_doubt = np.array([0.25, wider * doubt, wider * doubt]) * self.loss
        rise = math.log(_RISE * self.loss)
        self.mean, self.deviation = np.zeros(self.stop), np.ones(self.stop)
        for column, (centre, width) in _PRIOR.items():
            self.mean[column], self.deviation[column] = centre, wider * width
        self.mean[PER_WIDTH] = target.width_power
        self.mean[KNEE] = math.log2(0.58 * target.tokens**0.571 / batch_middle(fields, target))
        self.mean[RISE] = rise
        self.mean[COLUMNS + 1 :: 2] = rise
        if rates is not None:
            self.mean[BEST], self.deviation[BEST] = sum(rates) / 2, 0.3 * (rates[1] - rates[0])
        self._first = np.flatnonzero(np.diff(losses.places.rung, prepend=-1))
        self._weights = self._alike()

    def prior(self, count: int, draw: np.random.Generator) -> Array:
        """Draw from the prior, [count, K]."""
        draws = self.mean + self.deviation * draw.standard_normal((count, self.stop))
        draws[:, _SHAPE] = lr_valley.prior_shapes(count, draw)
        if self.rates is not None:
            outside = (draws[:, BEST] < self.rates[0]) | (draws[:, BEST] > self.rates[1])
            draws[outside, BEST] = draw.uniform(*self.rates, outside.sum())
        return draws

    def log_prior(self, draws: Array) -> Array:
        """Return the logarithm of the prior density of each draw, but for a constant, [N]."""
        scaled = ((draws - self.mean) / self.deviation) ** 2
        total = (scaled[:, _SHAPE].sum(axis=1) - scaled.sum(axis=1)) / 2
        total += lr_valley.log_shape(draws[:, _SHAPE])
        if self.rates is not None:
            inside = (draws[:, BEST] >= self.rates[0]) & (draws[:, BEST] <= self.rates[1])
            total = np.where(inside, total, -np.inf)
        return np.asarray(total)

    def level(self, draws: Array, places: Coordinates) -> Array:
        """Return the best loss of a fitted law at the places, with own deviations, [N, M]."""
        linear = draws[:, self.stop :]
        gains = _gains(draws, places.size, places.tokens)
        own = linear[:, LINEAR::2][:, places.rung]
        return np.asarray((gains * linear[:, :LINEAR].T[:, :, None]).sum(axis=0) + own)

    def best_rate(self, draws: Array, places: Coordinates) -> Array:
        """Return log2 of the best rate at the places' batch, of a law with own deviations."""
        moved = draws[:, BEST, None] + draws[:, PER_WIDTH, None] * places.width
        moved += draws[:, PER_DEPTH, None] * places.depth
        moved += draws[:, PER_TOKENS, None] * places.tokens
        if draws.shape[1] > self.stop:
            moved += draws[:, self.stop + LINEAR + 1 :: 2][:, places.rung]
        change = _bend(places.batch - knee(draws, places)) - _bend(-draws[:, KNEE, None])
        return np.asarray(moved + draws[:, PER_BATCH, None] * change)

    def cost(self, draws: Array, places: Coordinates) -> tuple[Array, Array, Array, Array]:
        """Return what the places' values cost, the noise of one trial, the misfit of a mean, and
        the slope of the cost over log2 of the rate, [N, M] each.
        """
        from_best = np.zeros((len(draws), len(places.batch)))
        if self.rates is not None:
            from_best = places.rate - self.best_rate(draws, places)
        curves, scale = _curves(draws), np.exp(draws[:, RISE_TOKENS, None] * places.tokens)
        above, noise, misfit = lr_valley.deviations(from_best, curves)
        slope = (lr_valley.excess(from_best + _STEP, curves) - above) / _STEP * scale
        above, misfit = above * scale, (misfit * scale) ** 2
        off = places.batch - knee(draws, places) - draws[:, OFFSET, None]
        rise = (draws[:, RISE] + draws[:, BATCH_RISE])[:, None]
        rise = rise + np.where(off > 0, 0.5, -0.5) * draws[:, BATCH_SKEW, None]
        heights = [np.exp(rise) * scale * off**2]
        for k in range(places.others.shape[1]):
            centre, rise = (draws[:, COLUMNS + 2 * k + i, None] for i in (0, 1))
            heights.append(np.exp(rise) * (places.others[:, k] - centre) ** 2)
        for height in heights:
            above += height
            misfit += (_MISFIT * height) ** 2
        return above, noise, np.sqrt(misfit), slope

    def _alike(self) -> Array:
        """Return how much each mean counts, [M]: neighbours are off the law alike."""
        places = self.losses.places
        apart = np.abs(places.batch[:, None] - places.batch)
        apart += np.abs(places.rate[:, None] - places.rate)
        apart += np.abs(places.others[:, None] - places.others).sum(axis=2)
        near = np.maximum(1 - apart, 0) * (places.rung[:, None] == places.rung)
        return np.asarray(np.maximum(near.sum(axis=1) ** -lr_valley.ALIKE, 0.5))

    def log_likelihood(self, draws: Array) -> Array:
        """Return the logarithm of the probability of the losses under each draw, [N]."""
        with np.errstate(all="ignore"):
            total = self._log_walls(draws)
            if len(self._first):
                total += self._integrated(draws)[0]
        return np.asarray(np.where(np.isfinite(total), total, -np.inf))

    def with_linear(self, draws: Array, more: int, draw: np.random.Generator) -> Array:
        """Return draws with the linear unknowns of the losses' rungs and of ``more``."""
        normal = draw.standard_normal((len(draws), LINEAR + 2 * more))
        linear = self.linear + self.linear_doubt * normal[:, :LINEAR]
        if len(self._first):
            linear = self._integrated(draws, draw)[1]
        new = normal[:, LINEAR:] * self.bottom
        new[:, ::2] = normal[:, LINEAR::2] * self.loss * np.exp(draws[:, TAU, None])
        return np.concatenate([draws, linear, new], axis=1)

    def _integrated(
        self, draws: Array, draw: np.random.Generator | None = None
    ) -> tuple[Array, Array]:
        """Integrate the linear unknowns: return the logarithm of the density of the losses, [N],
        and the unknowns, of the law and two of each rung, [N, 3 + 2 R]: drawn, or their means.

        A loss is, but for noise and misfit, its rung's level, plus its cost, minus the slope of the
        cost times the shift of the bottom.
        """
        losses, places, first = self.losses, self.losses.places, self._first
        above, noise, misfit, slope = self.cost(draws, places)
        rest = losses.means - above
        variance = (noise**2 / losses.seeds + misfit**2) / self._weights + losses.doubt + 1e-30
        own = self.loss * np.exp(draws[:, TAU, None])
        gains = _gains(draws, places.size[first], places.tokens[first])
        for last in (False, True):
            # Each rung: its bottom's shift is integrated first, then its own level.
            sums = [np.add.reduceat(each / variance, first, axis=1) for each in (
                np.ones_like(slope), slope, slope**2, rest, slope * rest, rest**2
            )]  # fmt: skip
            bend, tilted, tilt = sums[2] + self.bottom**-2, -sums[1], -sums[4]
            precision, level = sums[0] - tilted**2 / bend, sums[3] - tilted * tilt / bend
            squares = sums[5] - tilt**2 / bend - level**2 / precision
            total = -(squares + np.log(bend) + np.log(precision)).sum(axis=1) / 2
            total -= np.log(variance).sum(axis=1) / 2
            # One after the other, the rungs' levels are taken into the law's.
            mean = np.tile(self.linear, (len(draws), 1))
            covariance = np.tile(np.diag(self.linear_doubt**2), (len(draws), 1, 1))
            for k in range(len(first)):
                gain = gains[:, :, k].T
                moved = (covariance * gain[:, None, :]).sum(axis=2)
                spread = (moved * gain).sum(axis=1) + 1 / precision[:, k] + own[:, 0] ** 2
                off = level[:, k] / precision[:, k] - (gain * mean).sum(axis=1)
                total -= (off**2 / spread + np.log(spread)) / 2
                step = moved / spread[:, None]
                mean += step * off[:, None]
                covariance -= step[:, :, None] * moved[:, None, :]
            normal = np.zeros((len(draws), LINEAR + 2 * len(first)))
            if last and draw is not None:
                normal = draw.standard_normal(normal.shape)
                root = np.linalg.cholesky(covariance + 1e-12 * np.diag(self.linear_doubt**2))
                mean += (root @ normal[:, :LINEAR, None])[:, :, 0]
            law, tight = (gains * mean.T[:, :, None]).sum(axis=0), precision + own**-2
            levels = (level + law * own**-2) / tight + normal[:, LINEAR::2] / np.sqrt(tight)
            bottoms = (tilt - tilted * levels) / bend + normal[:, LINEAR + 1 :: 2] / np.sqrt(bend)
            if not last:  # Losses far above the law count less.
                off = rest - levels[:, places.rung] + slope * bottoms[:, places.rung]
                variance *= np.maximum(off / np.sqrt(variance) / _ODD, 1.0) ** 2
        total -= (losses.squares / noise**2 / 2 + (losses.seeds - 1) * np.log(noise)).sum(axis=1)
        pairs = np.stack([levels - law, bottoms], axis=2).reshape(len(draws), -1)
        return total, np.concatenate([mean, pairs], axis=1)

    def _log_walls(self, draws: Array) -> Array:
        """Return the logarithm of the probability that the diverged trials did, [N]."""
        places = self.losses.walls
        if self.rates is None or not len(places.rate):
            return np.zeros(len(draws))
        curves = _curves(draws)
        curves[:, lr_valley.RISE] = 0.0
        from_best = places.rate - self.best_rate(draws, places)
        high = np.where(from_best > 0, lr_valley.excess(from_best, curves), 0.0)
        return np.asarray(-np.log1p(np.maximum(high, _SIDE) ** -_WALL).sum(axis=1))


def knee(draws: Array, places: Coordinates) -> Array:
    """Return log2 of the knee over the middle batch, [N, M]."""
    moved = draws[:, KNEE_TOKENS, None] * places.tokens
    return np.asarray(draws[:, KNEE, None] + moved + draws[:, KNEE_SIZE, None] * places.size)


def batch_middle(fields: tuple[Field, ...], target: Setting) -> float:
    """Return the batch to which others are related, in tokens."""
    ends = ((field.low * field.high) ** 0.5 for field in fields if field.role == "batch")
    return next(ends, target.batch)


def _gains(draws: Array, size: Array, tokens: Array) -> Array:
    """Return by what each linear unknown of the law counts in the best loss, [3, N, M]."""
    less = [
        np.exp2(np.minimum(-np.exp(draws[:, column, None]) * over, 60.0)) - 1
        for column, over in ((ALPHA, size), (BETA, tokens))
    ]
    return np.array([np.ones_like(less[0]), *less])


def _curves(draws: Array) -> Array:
    """Return curves of ``lr_valley`` with the best rate and the level at zero."""
    curves = np.zeros((len(draws), 8))
    curves[:, lr_valley.RISE :] = draws[:, VALLEY]
    return curves


def _bend(over: Array) -> Array:
    """Return the doublings of the batch, up to the knee, for one so many over it."""
    return np.asarray(-np.logaddexp2(0, -_SHARP * over) / _SHARP)
