"""Estimate the loss at learning rates between trials, as a distribution over curves.

Loss over log learning rate is a curve with one valley, of unknown width, skewness and noise. The
model is a Gaussian process in log2(lr) (Rasmussen & Williams 2006, chapter 2) around a parabola of
unknown shape. Its smoothness, length, size and noise are not estimated: every setting of a grid is
weighted by how well it explains the trials. So the intervals include the unknown shape.

Some settings have a kink: a rate at which the slope jumps, as where training begins to diverge. The
curve has a parabola of its own on each side of it.

Two changes adapt it to learning rates. Loss is measured in units of the rise next to the best
trial, so nothing depends on the scale of the metric. Losses far above the best are compressed,
since a sweep's worst trials must not shape the valley. For a diverged rate, or one beyond ``CLIFF``
units, only the fact that the curve is high there is used, with a wide margin.

The settings were chosen by ``tests/bench/lr_verdict.py``: docs/judgement.md has its table.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from threading import Lock
from typing import TYPE_CHECKING, Literal

from lehr.analysis.lr_shapes import CurveShape, features, matern, noise_levels, shapes

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    Array = NDArray[np.float64]

CLIFF = 20.0
"""Units above the best from which a loss counts as high ground only."""
_BEND = 5.0
"""Units up to which loss is not compressed; farther up, its logarithm counts."""
_CLIFF_MARGIN = 0.5
"""Standard deviation of high ground, as a share of its height."""
_STEPS = 12
"""Points of the grid for each doubling of the rate."""
_MOST_POINTS = 150
"""Points of the grid over rates that are very far apart; its cost goes with their third power."""
_DRAWS = 800

_KINK_DOUBT = 5.0
"""Weight of all kinked settings in the drawn curves, all others having 1. It never falls: trials
say little about a kink between two of them, and the intervals have to hold what is not excluded."""
_SHARES = {0.68: 0.70, 0.95: 0.97}
"""Probability that an interval promises: share of the drawn best rates that it has to hold."""

_ONE_AT_A_TIME = Lock()


@dataclass(frozen=True)
class RateResult:
    """The mean of one learning rate's seeds."""

    rate: float
    loss: float | None
    """None: it diverged."""
    seeds: int = 1


@dataclass(frozen=True)
class Posterior:
    """Curves that agree with the trials, on a grid of learning rates."""

    rates: Array
    """[G], ascending."""
    excess: Array
    """[N, G]: of each curve, the loss above its own minimum."""
    mean: Array
    """[G]: mean loss."""
    spread: Array
    """[G]: standard deviation of the loss."""
    judged: tuple[float, float]
    """The lowest and the highest rate whose loss was used, around the best trial."""

    @property
    def risk(self) -> Array:
        """The loss that each rate is expected to cost above the best one, [G]."""
        risk: Array = self.excess.mean(axis=0)
        return risk

    @property
    def recommended(self) -> float:
        """The lowest point of the mean curve between judged rates.

        Between the last of them and a rate that diverged or was pruned, no loss shows where the
        curve begins to rise.
        """
        low, high = self.judged
        return min(max(float(self.rates[self._lowest]), low), high)

    @property
    def cost(self) -> float:
        """The loss that the recommended rate is expected to cost above the best one."""
        return float(self.risk[self._lowest])

    @property
    def _lowest(self) -> int:
        """The index of the recommended rate, or of the next point of the grid beyond it."""
        import numpy as np

        low, high = np.searchsorted(self.rates, self.judged)
        first = max(0, int(low) - 1)
        return first + int(self.mean[first : int(high) + 1].argmin())

    @property
    def best_rates(self) -> Array:
        """The best rate of each curve, [N]."""
        import numpy as np

        # A curve is known at the grid's points only: its best rate is anywhere around the lowest.
        cell = math.log(self.rates[1] / self.rates[0])
        around = np.random.default_rng(0).uniform(-cell / 2, cell / 2, len(self.excess))
        best: Array = self.rates[self.excess.argmin(axis=1)] * np.exp(around)
        return np.clip(best, self.rates[0], self.rates[-1])

    def interval(self, probability: float) -> tuple[float, float]:
        """Return the central interval that holds the best rate with this probability."""
        import numpy as np

        tail = (1 - _SHARES.get(probability, probability)) / 2
        low, high = np.quantile(np.log(self.best_rates), (tail, 1 - tail))
        return math.exp(low), math.exp(high)

    def bound(self, side: Literal["low", "high"], probability: float) -> float:
        """Return the rate beyond which the best one lies with this probability: above it on the
        high side, below it on the low side.
        """
        import numpy as np

        share = 1 - probability if side == "high" else probability
        return math.exp(float(np.quantile(np.log(self.best_rates), share)))

    def probability(self, low: float, high: float) -> float:
        """Return the probability that the best rate lies between two rates."""
        best = self.best_rates
        return float(((best > low) & (best < high)).mean())

    def cheap(self, cost: float) -> tuple[float, float] | None:
        """Return the rates around the recommended one that are expected to cost less.

        None: even the recommended rate is expected to cost more.
        """
        risk = self.risk
        at = self._lowest
        if risk[at] >= cost:
            return None
        low, high = at, at
        while low > 0 and risk[low - 1] < cost:
            low -= 1
        while high < len(risk) - 1 and risk[high + 1] < cost:
            high += 1
        return float(self.rates[low]), float(self.rates[high])


def posterior(trials: tuple[RateResult, ...], noise: float | None) -> Posterior | None:
    """Compute the curves that agree with the trials; None with fewer than three finite losses, or
    where rates differ by rounding only.

    Args:
        trials: by ascending rate.
        noise: standard deviation of loss between seeds; None where no rate has two.
    """
    from threadpoolctl import threadpool_limits

    # A page asks for a sweep and for its figure at once: the second waits for the first's curves.
    # The matrices are small: with two threads they took 6 to 10 times as long on a busy machine.
    with _ONE_AT_A_TIME, threadpool_limits(1, user_api="blas"):
        return _posterior(trials, noise)


@lru_cache(maxsize=256)
def _posterior(trials: tuple[RateResult, ...], noise: float | None) -> Posterior | None:
    import numpy as np

    known = [(trial.rate, trial.loss, trial.seeds) for trial in trials if trial.loss is not None]
    if len(known) < 3:
        return None
    losses = np.array([loss for _, loss, _ in known])
    excess = losses - losses.min()
    best = int(excess.argmin())
    unit = _unit(excess, best)
    near = excess < CLIFF * unit
    x = np.log2([rate for rate, _, _ in known])
    walls = [
        math.log2(trial.rate)
        for trial in trials
        if trial.loss is None or trial.loss - losses.min() >= CLIFF * unit
    ]
    left = [wall for wall in walls if wall < x[best]][-1:]
    right = [wall for wall in walls if wall > x[best]][:1]
    first = left[0] if left else math.log2(trials[0].rate)
    last = right[0] if right else math.log2(trials[-1].rate)
    inside = near & (x >= first) & (x <= last)
    height = float(_compressed(np.array([CLIFF]))[0])
    if not last > first:
        return None  # Their logarithms are equal.
    points = min(math.ceil((last - first) * _STEPS) + 1, _MOST_POINTS)
    grid = np.linspace(first, last, points)
    used = [rate for (rate, _, _), counts in zip(known, inside, strict=True) if counts]
    seeds = np.array([count for _, _, count in known])
    mean, spread, drawn = _curves(
        np.concatenate([x[inside], left, right]),
        np.concatenate([_compressed(excess[inside] / unit), [height] * len(left + right)]),
        margins=np.concatenate(
            [np.zeros(int(inside.sum())), [_CLIFF_MARGIN * height] * len(left + right)]
        ),
        seeds=np.concatenate([seeds[inside], [1] * len(left + right)]),
        noises=noise_levels(None if noise is None else noise / unit),
        grid=grid,
    )
    wide = _expanded(drawn - drawn.min(axis=1, keepdims=True)) * unit
    return Posterior(
        rates=2.0**grid,
        excess=wide,
        mean=losses.min() + _expanded(mean) * unit,
        spread=spread * unit,
        judged=(used[0], used[-1]),
    )


def high_ground(losses: Sequence[float]) -> list[bool]:
    """Return whether each loss, by ascending rate, counts as high ground only."""
    import numpy as np

    excess = np.array(losses) - min(losses)
    if len(excess) < 3:
        return [False] * len(excess)
    return [bool(one >= CLIFF * _unit(excess, int(excess.argmin()))) for one in excess]


def _unit(excess: Array, best: int) -> float:
    """Return the rise of loss next to the best trial: the mean of the two lowest neighbours."""
    beside = sorted([*excess[max(0, best - 2) : best], *excess[best + 1 : best + 3]])[:2]
    return float(sum(beside) / len(beside)) or float(excess.max()) or 1.0


def _compressed(excess: Array) -> Array:
    import numpy as np

    bent: Array = np.where(
        excess <= _BEND, excess, _BEND * (1 + np.log(np.maximum(excess, _BEND) / _BEND))
    )
    return bent


def _expanded(height: Array) -> Array:
    """Undo ``_compressed``."""
    import numpy as np

    wide: Array = np.where(
        height <= _BEND, height, _BEND * np.exp(np.minimum(height, 20 * _BEND) / _BEND - 1)
    )
    return wide


def _curves(
    x: Array,
    y: Array,
    *,
    margins: Array,
    seeds: Array,
    noises: Sequence[tuple[float, float]],
    grid: Array,
) -> tuple[Array, Array, Array]:
    """Return the mean curve [G], the standard deviation [G] of the drawn curves, and these.

    Args:
        x: [M], log2 of the rates.
        y: [M], their heights.
        margins: [M], standard deviations besides the noise.
        seeds: [M], trials whose mean each height is.
        noises: standard deviations to consider, of one trial and of each rate's mean besides.
        grid: [G], where the curves are wanted.
    """
    import numpy as np

    centre = x[y.argmin()]
    distances = [np.abs(a[:, None] - b) for a, b in ((x, x), (grid, x), (grid, grid))]
    settings: list[tuple[float, CurveShape, Array, Array, NDArray[np.floating]]] = []
    for shape in shapes(x, y):
        at_x, at_grid = (features(at, centre, shape.kink) for at in (x, grid))
        products = (at_x.T @ at_x, at_grid.T @ at_x, at_grid.T @ at_grid)
        at_trials, to_grid, on_grid = (
            shape.size**2 * matern(distance / shape.length, shape.kernel) + product
            for distance, product in zip(distances, products, strict=True)
        )
        for noise, deviation in noises:
            apart = noise**2 / seeds + deviation**2 + margins**2 + 1e-10
            root = _cholesky(at_trials, apart)
            half = np.linalg.solve(root, y)
            likelihood = -0.5 * float(half @ half) - float(np.log(np.diag(root)).sum())
            shrink = np.linalg.solve(root, to_grid.T)
            settings.append((likelihood, shape, shrink.T @ half, on_grid, shrink))
    likelihoods = np.array([one[0] for one in settings])
    explained = np.exp(likelihoods - likelihoods.max())
    weights = explained * [one[1].weight for one in settings]
    doubts = _doubts(likelihoods, np.array([one[1].kink is not None for one in settings]))
    draw = np.random.default_rng(0)  # Always the same, so that a verdict does not change by itself.
    parts = []
    for doubt, (_, _, middle, on_grid, shrink) in zip(doubts, settings, strict=True):
        if count := round(doubt * _DRAWS):
            root = _root(on_grid - shrink.T @ shrink)
            parts.append(middle + draw.standard_normal((count, len(grid))) @ root.T)
    drawn = np.concatenate(parts)
    mean = sum(w * one[2] for w, one in zip(weights / weights.sum(), settings, strict=True))
    return np.asarray(mean), drawn.std(axis=0), drawn


def _doubts(likelihoods: Array, kinked: NDArray[np.bool_]) -> Array:
    """Return how much each setting counts in the drawn curves, [S]; the sum is 1."""
    import numpy as np

    within = np.zeros(len(kinked))
    evidence = []
    for members in (kinked, ~kinked):
        logs = likelihoods[members]
        explained = np.exp(logs - logs.max())
        within[members] = explained / explained.sum()
        evidence.append(float(logs.max() + np.log(explained.mean())))
    odds = _KINK_DOUBT * math.exp(min(max(evidence[0] - evidence[1], 0.0), 100.0))
    found: Array = within * np.where(kinked, odds, 1.0) / (1.0 + odds)
    return found


def _cholesky(covariance: Array, apart: Array) -> Array:
    """Return the Cholesky factor [M, M] of the covariance [M, M] with `apart` [M] on its diagonal.

    If one rate is hundreds of powers of two from the others, rounding errors exceed a small noise.
    Then more is added to the diagonal.
    """
    import numpy as np

    try:
        return np.asarray(np.linalg.cholesky(covariance + np.diag(apart)))
    except np.linalg.LinAlgError:
        rounding = 1e-10 * float(np.diag(covariance).max())
        return np.asarray(np.linalg.cholesky(covariance + np.diag(apart + rounding)))


def _root(covariance: Array) -> Array:
    """Return a matrix whose product with its transpose is the covariance, but for rounding."""
    import numpy as np

    diagonal = np.eye(len(covariance)) * (1e-7 * np.diag(covariance).mean() + 1e-9)
    try:
        root: Array = np.linalg.cholesky(covariance + diagonal)
    except np.linalg.LinAlgError:
        values, vectors = np.linalg.eigh(covariance)
        root = vectors * np.sqrt(np.maximum(values, 0.0))
    return root
