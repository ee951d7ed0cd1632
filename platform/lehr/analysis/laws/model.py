"""The model of the final loss over size, tokens, batch and decided values.

- The best loss is ``E + A N^-alpha + B (D + D0)^-beta`` for N parameters without embeddings and D
  tokens (Hoffmann et al. 2022, arXiv:2203.15556; D0: the first tokens teach little). A training's
  own values add what they cost.
- The rate costs what the valley of ``lr_valley`` says. Its bottom moves with powers of width, depth
  and tokens, and with the batch: up to a knee, and not beyond it (the critical batch: McCandlish et
  al. 2018, arXiv:1812.06162). The knee moves with powers of tokens and size.
- The batch costs a parabola in its logarithm, whose bottom lies near the knee; any other value a
  parabola that does not move.
- Each rung is off the law by an own deviation of its loss and of its valley's bottom. That of the
  loss is larger for few tokens, and neighbours in size and tokens have nearly the same.

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

# Logarithms of the powers of size and tokens, and of the target's own deviation over the loss.
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
# log2, over the target's tokens, of those that a training needs to begin with.
START = 21
COLUMNS = 22
# The target's best loss; the parts of it that more parameters would take away, and more tokens.
LINEAR = 3

# Mean and standard deviation by published runs (docs/campaign.md), of the power of width beside the
# one of the parametrization, of the knee beside the published best batch.
_PRIOR: dict[int, tuple[float, float]] = {
    ALPHA: (math.log(0.3), 0.35),
    BETA: (math.log(0.32), 0.35),
    TAU: (math.log(0.0035), 0.8),
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
    START: (math.log2(1e5), 2.0),
}
_FADES = 0.4  # Power of the tokens with which a rung's own deviation falls; TAU is of the usual.
_REACH = 3.0  # Doublings of size and tokens over which deviations are alike, but for 1 / e.
# Standard deviation of a usual rung's own best rate, in doublings; the power of the tokens.
_BOTTOM, _BOTTOM_FADES = 0.15, 0.15
# Parameters and tokens of a usual training; the part of its loss that more of each would take away.
_USUAL, _PART = (1e9, 2e10), 0.17
_WIDER = 2.5  # Factor of these standard deviations where published runs do not count.
_RISE = 0.006  # Share of the loss that a doubling of a value costs, within a factor of e.
_SHARP = 3.0  # How sharp the knee is: it turns within about 1 / this doublings on each side.
_MISFIT = 0.15  # How far a mean loss lies from a parabola, as a share of its height.
_ODD = 2.5  # Standard deviations above the law from which a loss counts less: it was disturbed.
_WALL = 2.4  # As in ``lr_valley``: how steeply a divergence's chance falls with the rate's height.
_STEEP = 1e3  # Times the lowest loss: no trial that did not diverge costs as much.
_JITTER = 1e-9  # Share of variances by which matrices are less singular.
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
        over = np.array([target.non_embedding / _USUAL[0], target.tokens / _USUAL[1]])
        self.bottom = wider * _BOTTOM * over[1] ** -_BOTTOM_FADES
        parts = _PART * over ** -np.exp([_PRIOR[ALPHA][0], _PRIOR[BETA][0]])
        parts /= 1 - 2 * _PART + parts.sum()
        self.linear = np.array([1.0, *parts]) * self.loss
        self.linear_doubt = np.array([0.25, *(wider * 0.6 * parts)]) * self.loss
        rise = math.log(_RISE * self.loss)
        self.mean, self.deviation = np.zeros(self.stop), np.ones(self.stop)
        for column, (centre, width) in _PRIOR.items():
            self.mean[column], self.deviation[column] = centre, wider * width
        self.mean[PER_WIDTH] = target.width_power
        self.mean[KNEE] = math.log2(0.58 * target.tokens**0.571 / batch_middle(fields, target))
        self.mean[RISE] = rise
        self.mean[TAU] -= _FADES * math.log(over[1])
        self.mean[START] -= math.log2(target.tokens)
        self.mean[COLUMNS + 1 :: 2] = rise
        if rates is not None:
            self.mean[BEST], self.deviation[BEST] = sum(rates) / 2, 0.3 * (rates[1] - rates[0])
        self._first = np.flatnonzero(np.diff(losses.places.rung, prepend=-1))
        self._weights = self._alike()
        self._rungs = Coordinates._make(each[self._first] for each in losses.places)

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

    def with_linear(self, draws: Array, rungs: Coordinates, draw: np.random.Generator) -> Array:
        """Return draws with the linear unknowns, of the law and two of each of ``rungs``: those of
        the losses come first. Draws of the prior, with losses, are moved by how far these are off.
        """
        known, count = len(self._first), len(rungs.rung)
        linear = self.linear + self.linear_doubt * draw.standard_normal((len(draws), LINEAR))
        normal = draw.standard_normal((3, len(draws), count))
        together, own = _together(rungs), self._own(draws, rungs)
        root = np.linalg.cholesky(together + _JITTER * np.eye(count))
        levels, bottoms = own * (normal[0] @ root.T), self._bottoms(rungs) * normal[1]
        if known:
            _, gains, covariance, seen, doubt, bend, shift, lean = self._integrated(draws)
            off = seen - (gains * linear.T[:, :, None]).sum(axis=0) - levels[:, :known]
            off -= np.sqrt(doubt) * normal[2, :, :known]
            moved = np.linalg.solve(covariance, off[:, :, None])[:, :, 0]
            linear += self.linear_doubt**2 * (gains * moved).sum(axis=2).T
            levels += own * ((own[:, :known] * moved) @ together[:known])
            above = (gains * linear.T[:, :, None]).sum(axis=0) + levels[:, :known]
            bottoms[:, :known] = shift + lean * above + normal[1, :, :known] / np.sqrt(bend)
        pairs = np.stack([levels, bottoms], axis=2).reshape(len(draws), -1)
        return np.concatenate([draws, linear, pairs], axis=1)

    def _own(self, draws: Array, rungs: Coordinates) -> Array:
        """Return the standard deviation of each rung's own level, [N, R]."""
        return self.loss * np.exp(draws[:, TAU, None] - math.log(2) * _FADES * rungs.tokens)

    def _bottoms(self, rungs: Coordinates) -> Array:
        """Return the standard deviation of each rung's own bottom, [R], in doublings."""
        return np.asarray(self.bottom * np.exp2(-_BOTTOM_FADES * rungs.tokens))

    def _integrated(self, draws: Array) -> tuple[Array, ...]:
        """Integrate the linear unknowns: return the logarithm of the density of the losses, [N];
        what each unknown of the law counts, [3, N, R]; the covariance of the rungs' levels as they
        are seen, [N, R, R]; these with their variances, the precision of the bottoms, and their
        shifts: at a level of zero, and for each unit of the level, [N, R] each.

        A loss is, but for noise and misfit, its rung's level, plus its cost, minus the slope of the
        cost times the shift of the bottom.
        """
        losses, places, first = self.losses, self.losses.places, self._first
        above, noise, misfit, slope = self.cost(draws, places)
        rest = losses.means - above
        variance = (noise**2 / losses.seeds + misfit**2) / self._weights + losses.doubt + 1e-30
        own = self._own(draws, self._rungs)
        gains = _gains(draws, self._rungs.size, self._rungs.tokens)
        law = (gains * self.linear[:, None, None]).sum(axis=0)
        scaled = (gains * self.linear_doubt[:, None, None]).transpose(1, 2, 0)
        prior = own[:, :, None] * own[:, None, :] * _together(self._rungs)
        prior += scaled @ scaled.transpose(0, 2, 1)
        diagonal = np.arange(len(first))
        prior[:, diagonal, diagonal] *= 1 + _JITTER
        for last in (False, True):
            # Each rung: its bottom's shift is integrated first, then all levels together.
            sums = [np.add.reduceat(each / variance, first, axis=1) for each in (
                np.ones_like(slope), slope, slope**2, rest, slope * rest
            )]  # fmt: skip
            bend = sums[2] + self._bottoms(self._rungs) ** -2
            lean, shift = sums[1] / bend, -sums[4] / bend
            doubt = 1 / (sums[0] - sums[1] * lean)
            seen = (sums[3] + sums[1] * shift) * doubt
            covariance = prior.copy()
            covariance[:, diagonal, diagonal] += doubt
            moved = np.linalg.solve(covariance, (seen - law)[:, :, None])[:, :, 0]
            levels = seen - doubt * moved
            bottoms = shift + lean * levels
            off = rest - levels[:, places.rung] + slope * bottoms[:, places.rung]
            if not last:  # Losses far above the law count less.
                variance *= np.maximum(off / np.sqrt(variance) / _ODD, 1.0) ** 2
        squares = (levels - law) * moved + (bottoms / self._bottoms(self._rungs)) ** 2
        total = -(squares + np.log(bend) - np.log(doubt)).sum(axis=1) / 2
        total -= np.linalg.slogdet(covariance)[1] / 2
        total -= (off**2 / variance + np.log(variance)).sum(axis=1) / 2
        total -= (losses.squares / noise**2 / 2 + (losses.seeds - 1) * np.log(noise)).sum(axis=1)
        total[above.max(axis=1) > _STEEP * self.loss] = -np.inf
        return total, gains, covariance, seen, doubt, bend, shift, lean

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
    start = draws[:, START, None]
    tokens = np.logaddexp2(tokens, start) - np.logaddexp2(0, start)
    less = [
        np.exp2(np.minimum(-np.exp(draws[:, column, None]) * over, 60.0)) - 1
        for column, over in ((ALPHA, size), (BETA, tokens))
    ]
    return np.array([np.ones_like(tokens), *less])


def _together(rungs: Coordinates) -> Array:
    """Return how far the own deviations of rungs' levels go together, [R, R]."""
    apart = np.abs(rungs.size[:, None] - rungs.size)
    apart += np.abs(rungs.tokens[:, None] - rungs.tokens)
    return np.asarray(np.exp(-apart / _REACH))


def _curves(draws: Array) -> Array:
    """Return curves of ``lr_valley`` with the best rate and the level at zero."""
    curves = np.zeros((len(draws), 8))
    curves[:, lr_valley.RISE :] = draws[:, VALLEY]
    return curves


def _bend(over: Array) -> Array:
    """Return the doublings of the batch, up to the knee, for one so many over it."""
    return np.asarray(-np.logaddexp2(0, -_SHARP * over) / _SHARP)
