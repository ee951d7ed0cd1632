"""Decide claims ("qk-norm lowers val/loss") by the gains of pairs of runs with the same seed.

The evidence for a claim is an e-value: without a gain its mean is at most 1, for noise of any size
and after any number of pairs. It is the Bayes factor of the t test, with the right Haar prior on
the noise and a half-normal prior on the gain in units of it (Perez-Ortiz, Lardy, de Heide &
Grunwald 2024, Annals of Statistics 52, 1410-1432). It rises with the t statistic, so a gain below 0
lowers it further.

Over the claims of a person the false discovery rate is at most ``ALPHA``: claim t is kept once its
evidence reaches 1 / (ALPHA * g_t * (k + 1)), where k claims are kept by then and the g_t add up to
1 (e-LOND: Xu & Ramdas 2024, arXiv:2311.06412). That holds however the claims depend on each other,
and in whatever order they are decided: with claim t, at least k + 1 are kept.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any, Literal, NamedTuple

import numpy as np
from numpy.typing import NDArray

from lehr.analysis.significance import cumulative

ALPHA = 0.05
FIRST = 6  # Pairs of the first look, and at most of each further one.
MOST = 32  # Pairs after which a claim that is not kept is rejected.
_PRIOR = 2.0  # Variance of the prior of the gain, in variances of a pair's difference.
_DECAY, _TOTAL = 1.2, 5.591582441177751  # g_t is t ** -_DECAY / _TOTAL, the sum of all.
_POWER, _FUTILE, _DRAWS = 0.8, 0.2, 300


class ClaimDecision(NamedTuple):
    verdict: Literal["keep", "reject", "undecided"]
    evidence: float
    more: int | None = None
    """Further pairs that keep it in 80 % of cases if the gain is as it looks; None: too many."""


def required(number: int, kept: int) -> float:
    """Return the evidence that keeps a person's claim ``number`` (from 1), while ``kept`` are."""
    return float(_TOTAL * number**_DECAY / (ALPHA * (kept + 1)))


def decide(gains: Sequence[float], needed: float, *, looked: int = 0) -> ClaimDecision:
    """Decide by the gains, above 0 where the claim holds, of at least two pairs in the order of
    their seeds, of which ``looked`` were looked at before.

    A claim is rejected where one of its seeds diverged (-inf), and where a gain one standard error
    above the mean would be kept by ``MOST`` pairs in less than 20 % of cases.
    """
    values, evidence = np.asarray(gains, float), 0.0
    if not np.isfinite(values).all():
        return ClaimDecision("reject", 0.0)
    # The evidence of an earlier look counts no more: others may have been kept since.
    for pairs in range(max(looked, 1), len(values) + 1):
        evidence = _evidence(values[:pairs])
        if evidence >= needed:
            return ClaimDecision("keep", evidence)
    error = float(values.std(ddof=1)) / math.sqrt(len(values))
    if len(values) >= MOST or _kept_by(values, error, needed)[-1] < _FUTILE:
        return ClaimDecision("reject", evidence)
    enough = np.flatnonzero(_kept_by(values, 0.0, needed) >= _POWER)
    return ClaimDecision("undecided", evidence, int(enough[0]) + 1 if enough.size else None)


def _evidence(gains: NDArray[np.float64]) -> float:
    count, total = len(gains), float(gains.sum())
    log, rest = _log_factor(total, (gains**2).sum(), count)
    # The gain is above 0 with this probability by the posterior, a scaled Student's t.
    shrunk = _PRIOR / (1 + count * _PRIOR)
    above = cumulative(total * shrunk / math.sqrt(rest / count * shrunk), count)
    return math.exp(min(float(log), 700.0)) * 2 * max(above, 0.0)


def _log_factor(total: Any, squares: Any, count: Any) -> tuple[Any, Any]:
    """Return the logarithm of the two-sided Bayes factor, and the squares that the gain leaves."""
    squares = np.maximum(squares, 1e-300)  # All gains may be 0.
    rest = squares - total**2 * _PRIOR / (1 + count * _PRIOR)
    return (count * np.log(squares / rest) - np.log1p(count * _PRIOR)) / 2, rest


def _kept_by(gains: NDArray[np.float64], more: float, needed: float) -> NDArray[np.float64]:
    """Return the probability that 1, 2, ... further pairs up to ``MOST`` keep the claim, if their
    gains are normal with the deviation of these, and their mean and ``more``.
    """
    counts = np.arange(len(gains) + 1, MOST + 1)
    mean, deviation = gains.mean() + more, gains.std(ddof=1)
    drawn = np.random.default_rng(0).normal(mean, deviation, (_DRAWS, len(counts)))
    total, squares = gains.sum() + drawn.cumsum(1), (gains**2).sum() + (drawn**2).cumsum(1)
    log, _ = _log_factor(total, squares, counts)
    reached = (total > 0) & (log + math.log(2) >= math.log(needed))
    return np.asarray(np.maximum.accumulate(reached, axis=1).mean(axis=0))
