"""Estimate the loss at learning rates between trials, as a distribution over curves.

The curves are those of ``lr_valley``, drawn by ``sampler``. Noise and shape are so unknowns like
the best rate, and the intervals include what is not known of them.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache, partial
from threading import Lock
from typing import Literal

import numpy as np

from lehr.analysis import lr_valley
from lehr.analysis.lr_fit import RateResult
from lehr.analysis.lr_valley import BEST, LEVEL, NOISE, RISE, Trials, deviations
from lehr.analysis.noise import Noise
from lehr.analysis.sampler import Array, sample

_CURVES = 1200
_GRID = 150  # Points of the grid of rates.
_DRAWN = 3.0
"""Doublings from the recommended rate up to which a figure shows the fit: farther away a curve has
the form of the valley alone, and the fit is not used."""
_ONE_AT_A_TIME = Lock()


@dataclass(frozen=True, eq=False)
class Posterior:
    """Curves that agree with the trials."""

    curves: Array  # [N, 8]: the columns of ``lr_valley``.
    rates: Array  # [G]: a grid of learning rates over those tried, ascending.
    excess: Array  # [N, G]: the loss of each curve above its best one.
    mean: Array  # [G]: mean loss.
    spread: Array  # [G]: standard deviation of one trial's loss: of the curve, and around it.
    drawn: slice
    """The part of the grid that figures show: near the recommended rate or in the 95 % interval,
    and before the first trial outside of the band that should hold 95 % of them."""

    @property
    def risk(self) -> Array:
        """The loss that each rate is expected to cost above the best one, [G]."""
        risk: Array = self.excess.mean(axis=0)
        return risk

    @property
    def recommended(self) -> float:
        """The rate that is expected to cost least."""
        return float(self.rates[self.risk.argmin()])

    @property
    def cost(self) -> float:
        """The loss that the recommended rate is expected to cost above the best one."""
        return float(self.risk.min())

    @property
    def best_rates(self) -> Array:
        """The best rate of each curve, [N]."""
        best: Array = 2.0 ** np.clip(self.curves[:, 0], -1000, 1000)
        return best

    def interval(self, probability: float) -> tuple[float, float]:
        """Return the central interval that holds the best rate with this probability, widened to
        the recommended one, which is chosen by its cost.
        """
        tail = (1 - probability) / 2
        low, high = np.quantile(self.best_rates, (tail, 1 - tail))
        return min(float(low), self.recommended), max(float(high), self.recommended)

    def bound(self, side: Literal["low", "high"], probability: float) -> float:
        """Return the rate beyond which the best one lies with this probability: above it on the
        high side, below it on the low side.
        """
        share = 1 - probability if side == "high" else probability
        return float(np.quantile(self.best_rates, share))

    def cheap(self, cost: float) -> tuple[float, float] | None:
        """Return the rates around the recommended one that are expected to cost less.

        None: even the recommended rate is expected to cost more.
        """
        dear = self.risk >= cost
        centre = int(self.risk.argmin())
        if dear[centre]:
            return None
        low = max((i + 1 for i in range(centre) if dear[i]), default=0)
        high = min((i - 1 for i in range(centre, len(dear)) if dear[i]), default=len(dear) - 1)
        return float(self.rates[low]), float(self.rates[high])

    @property
    def noise(self) -> tuple[float, float]:
        """The interval that holds the noise of one trial at the best rate with 68 %."""
        logs = self.curves[:, RISE] + self.curves[:, NOISE]
        low, high = np.exp(np.quantile(logs, (0.16, 0.84)))
        return float(low), float(high)

    def fall(self, tried: Sequence[tuple[float, int]]) -> float:
        """Return by how much more trials are expected to lower the cost.

        A third of the curves is taken for the true one in turn: its trials are drawn, and the
        curves are weighted by how well they explain these.

        Args:
            tried: pairs of a rate and its number of new seeds.
        """
        # A page asks for the same fit several times.
        return _fall(self, tuple(tried))


@lru_cache(maxsize=1024)
def _fall(posterior: Posterior, tried: tuple[tuple[float, int], ...]) -> float:
    if not tried:
        return 0.0
    draw = np.random.default_rng(0)
    above, noise, misfit = deviations(np.log2([rate for rate, _ in tried]), posterior.curves)
    spread = np.sqrt(noise**2 / [seeds for _, seeds in tried] + misfit**2)
    middle = posterior.curves[:, LEVEL, None] + above
    now, falls = posterior.risk.argmin(), []
    for true in range(0, len(middle), 3):
        losses = middle[true] + spread[true] * draw.standard_normal(len(tried))
        logs = -(((losses - middle) / spread) ** 2 / 2 + np.log(spread)).sum(axis=1)
        logs[true] = -np.inf  # Its own trials would explain it too well.
        risk = np.exp(logs - logs.max()) @ posterior.excess
        falls.append(posterior.excess[true, now] - posterior.excess[true, risk.argmin()])
    return float(np.mean(falls))


def posterior(trials: tuple[RateResult, ...], noise: Noise | None = None) -> Posterior | None:
    """Draw the curves that agree with the trials, which are by ascending rate; None with fewer than
    three rates with a loss, where rates differ by rounding only, and where all losses are equal.
    """
    # A page asks for a sweep and for its figure at once: the second waits for the first's curves.
    with _ONE_AT_A_TIME:
        return _posterior(trials, noise)


@lru_cache(maxsize=256)
def _posterior(trials: tuple[RateResult, ...], noise: Noise | None) -> Posterior | None:
    judged = [trial for trial in trials if trial.losses]
    x = np.log2([trial.rate for trial in judged])
    means = np.array([np.mean(trial.losses) for trial in judged])
    if len(judged) < 3 or not x[-1] > x[0] or not np.ptp(means) > 1e-100:
        return None
    best = x[means.argmin()]
    walls = [math.log2(trial.rate) for trial in trials if not trial.losses]
    beside = (
        *[wall for wall in walls if wall < best][-1:],
        *[wall for wall in walls if wall > best][:1],
    )
    losses = Trials(
        x,
        means,
        np.array([float(len(trial.losses)) for trial in judged]),
        np.array([np.var(trial.losses) * len(trial.losses) for trial in judged]),
        beside,
        noise,
    )
    # Always the same curves, so that no verdict changes by itself.
    draw = np.random.default_rng(0)
    curves = sample(
        lr_valley.prior_curves(losses, _CURVES, draw),
        partial(lr_valley.log_prior, losses),
        partial(lr_valley.log_likelihood, losses),
        draw,
    )
    if curves is None:
        return None
    left, right = (-math.inf, math.inf) if not beside else losses.range
    inside = [trial.rate for trial, at in zip(judged, x, strict=True) if left <= at <= right]
    grid = np.linspace(math.log2(inside[0]), math.log2(inside[-1]), _GRID)
    rates = 2.0**grid
    rates[[0, -1]] = inside[0], inside[-1]  # Without rounding.
    above, scatter, misfit = deviations(grid, curves)
    mean = curves[:, LEVEL].mean() + above.mean(axis=0)
    of_curves = (curves[:, LEVEL, None] + above).var(axis=0)
    spread = np.sqrt(of_curves + np.median(scatter**2 + misfit**2, axis=0))
    off = np.abs(means - np.interp(x, grid, mean)) > 1.96 * np.interp(x, grid, spread)
    centre = grid[above.mean(axis=0).argmin()]
    lowest = max(x[off & (x <= centre)], default=-math.inf)
    highest = min(x[off & (x > centre)], default=math.inf)
    carried = x[(x > lowest) & (x < highest)]
    drawn = slice(0, 0)
    if len(carried):
        low, high = np.quantile(curves[:, BEST], (0.025, 0.975))
        first = max(carried[0], min(centre - _DRAWN, low))
        last = min(carried[-1], max(centre + _DRAWN, high))
        drawn = slice(*map(int, np.searchsorted(grid, [first - 1e-9, last + 1e-9])))
    return Posterior(curves, rates, above, mean, spread, drawn)
