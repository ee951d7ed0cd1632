"""Draw from a posterior by sequential Monte Carlo (Del Moral, Doucet & Jasra 2006).

Draws of the prior are weighted by the likelihood step by step; after each step the improbable ones
are replaced by probable ones, and all are moved by a random walk.
"""

from __future__ import annotations

import math
from collections.abc import Callable

import numpy as np
from numpy.typing import NDArray

Array = NDArray[np.float64]

_MOVES = 8  # Random walks of each draw after a step.
_MOST_STEPS = 200


def sample(
    draws: Array,
    log_prior: Callable[[Array], Array],
    log_likelihood: Callable[[Array], Array],
    draw: np.random.Generator,
) -> Array | None:
    """Return as many draws from the posterior, [N, K]; None where none of the prior is possible.

    Args:
        draws: from the prior, [N, K].
        log_prior: of draws, [N]; but for a constant.
        log_likelihood: of draws, [N]; but for a constant.
        draw: gives the same draws for the same state.
    """
    count = len(draws)
    prior, likelihood = log_prior(draws), log_likelihood(draws)
    if not np.isfinite(likelihood).any():
        return None
    counted, scale = 0.0, 2.38 / math.sqrt(draws.shape[1])
    while counted < 1:
        share = _next_share(likelihood, 1 - counted)
        counted += share
        weights = np.exp(share * (likelihood - likelihood.max()))
        weights /= weights.sum()
        some = weights if (weights**2).sum() < 0.5 else None  # One draw alone has no spread.
        spread = np.cov(draws.T, aweights=some)
        root = np.linalg.cholesky(spread + 1e-9 * np.diag(np.diag(spread)))
        places = (np.arange(count) + draw.uniform()) / count
        kept = np.minimum(np.searchsorted(weights.cumsum(), places), count - 1)
        draws, prior, likelihood = draws[kept], prior[kept], likelihood[kept]
        for _ in range(_MOVES if counted < 1 else 2 * _MOVES):
            size = scale * np.exp(0.6 * draw.standard_normal((count, 1)))
            moved = draws + size * (draw.standard_normal(draws.shape) @ root.T)
            its_prior, its_likelihood = log_prior(moved), log_likelihood(moved)
            gain = its_prior - prior + counted * (its_likelihood - likelihood)
            better = np.log(draw.uniform(size=count)) < gain
            draws[better], prior[better] = moved[better], its_prior[better]
            likelihood[better] = its_likelihood[better]
            scale = min(max(scale * math.exp(better.mean() - 0.25), 0.1), 3.0)
    return draws


def _next_share(likelihood: Array, rest: float) -> float:
    """Return how much of the likelihood to count next, so that half of the draws still count."""

    def counting(share: float) -> float:
        weights = np.exp(share * (likelihood - likelihood.max()))
        return float(weights.sum() ** 2 / (weights**2).sum())

    if counting(rest) >= len(likelihood) / 2:
        return rest
    low, high = 0.0, rest
    for _ in range(30):
        middle = (low + high) / 2
        low, high = (middle, high) if counting(middle) > len(likelihood) / 2 else (low, middle)
    return max(low, rest / _MOST_STEPS)
