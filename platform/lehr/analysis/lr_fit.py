"""Fit the best learning rate: the best point, the best region, and what to try next.

Near its minimum, final loss is close to a parabola in log LR, so a quadratic is fitted to the best
trial and its neighbours. A minimum between trials is reported only when the parabola opens upward
and its vertex is among the fitted trials; otherwise the grid did not bracket it.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Literal

from lehr.analysis.noise import pooled_deviation
from lehr.formats import scientific

NEIGHBOURS = 2
"""Trials on each side of the best that are fitted: farther out, loss is no parabola."""


@dataclass(frozen=True)
class Parabola:
    """loss = a (ln lr)^2 + b ln lr + c, fitted over [first, last]."""

    a: float
    b: float
    c: float
    first: float
    last: float

    def __call__(self, lr: float) -> float:
        x = math.log(lr)
        return self.a * x * x + self.b * x + self.c


@dataclass(frozen=True)
class LrFit:
    """The result of (learning rate, loss) pairs, lower loss being better."""

    best: float
    """Learning rate with the lowest mean loss."""
    best_loss: float
    minimum: float | None
    """Learning rate of the fitted minimum, where the trials bracket one."""
    minimum_factor: float | None
    """One standard error of it, as a factor: 1.2 means minimum / 1.2 to minimum x 1.2. None when
    the fit has no degrees of freedom left.
    """
    parabola: Parabola | None
    edge: Literal["low", "high"] | None
    """The best is on this edge of the grid, so the grid does not bracket the minimum."""
    diverged: tuple[float, ...]
    """Learning rates at which no loss was finite."""
    noise: float | None
    """Standard deviation of loss between seeds at one learning rate, pooled; None with one seed."""
    within_noise: tuple[float, ...]
    """Learning rates whose mean loss is within twice the noise of the best."""
    next_grid: tuple[float, ...]
    """Learning rates to try when the best is on an edge."""

    def notes(self) -> list[str]:
        """Return what the fit adds to a ranking, one sentence each."""
        out = []
        if self.next_grid:
            out.append(f"Learning rates to try next: {_listed(self.next_grid)}.")
        minimum = self.minimum_note()
        if minimum is not None:
            out.append(minimum)
        if self.noise is not None:
            noise = f"The noise between seeds is {self.noise:.2g} (one standard deviation)"
            if len(self.within_noise) > 1:
                noise += f"; within twice that, these are equal: {_listed(self.within_noise)}"
            out.append(f"{noise}.")
        return out

    def minimum_note(self) -> str | None:
        """Return where the fitted minimum is, as a sentence; None without one."""
        if self.minimum is None:
            return None
        spread = ""
        if self.minimum_factor is not None:
            spread = f", within a factor of {self.minimum_factor:.2f}"
        minimum = scientific(self.minimum, 2)
        return f"A quadratic fit of loss over log LR puts the best at {minimum}{spread}."


def _listed(rates: Iterable[float]) -> str:
    return ", ".join(scientific(lr, 2) for lr in rates)


def fit_learning_rate(points: Iterable[tuple[float, float]]) -> LrFit | None:
    """Fit loss over learning rate; None when no loss is finite.

    Args:
        points: (learning rate > 0, loss) pairs; several of one rate are seeds of one trial; a loss
            that is NaN or infinite diverged.

    Raises:
        ValueError: a learning rate is not positive.
    """
    by_rate: dict[float, list[float]] = defaultdict(list)
    for lr, loss in points:
        if not lr > 0:
            raise ValueError(f"learning rate {lr} is not positive")
        by_rate[lr].append(loss)
    means = {
        lr: math.fsum(losses) / len(losses)
        for lr, losses in sorted(by_rate.items())
        if all(math.isfinite(loss) for loss in losses)
    }
    if not means:
        return None
    rates = list(means)
    best = min(rates, key=means.__getitem__)
    at = rates.index(best)
    noise = pooled_deviation(losses for lr, losses in by_rate.items() if lr in means)
    edge = _edge(best, sorted(by_rate), means)
    window = rates[max(0, at - NEIGHBOURS) : at + NEIGHBOURS + 1]
    parabola, minimum, factor = _fit_parabola(window, [means[lr] for lr in window])
    if edge is not None:
        minimum = factor = None
    return LrFit(
        best=best,
        best_loss=means[best],
        minimum=minimum,
        minimum_factor=factor,
        parabola=parabola,
        edge=edge,
        diverged=tuple(lr for lr in sorted(by_rate) if lr not in means),
        noise=noise,
        within_noise=()
        if noise is None
        else tuple(lr for lr in rates if means[lr] - means[best] <= 2 * noise),
        next_grid=_next_grid(rates, edge),
    )


def _edge(
    best: float, tried: Sequence[float], means: dict[float, float]
) -> Literal["low", "high"] | None:
    """Return the edge of the grid that the best is on. A diverged rate above the best brackets
    it.
    """
    if len(tried) < 2 or len(means) == 0:
        return None
    if best == tried[0]:
        return "low"
    return "high" if best == tried[-1] else None


def _fit_parabola(
    rates: Sequence[float], losses: Sequence[float]
) -> tuple[Parabola | None, float | None, float | None]:
    """Fit and return (parabola, its minimum inside the rates, one standard error of that as a
    factor).
    """
    if len(rates) < 3:
        return None, None, None
    import numpy as np

    # Centred on the middle of the rates, so that the least squares is well conditioned.
    middle = math.log(rates[0] * rates[-1]) / 2
    x = np.log(np.asarray(rates)) - middle
    y = np.asarray(losses)
    design = np.stack([x * x, x, np.ones_like(x)], axis=1)
    (a, b, c), *_ = np.linalg.lstsq(design, y, rcond=None)
    parabola = Parabola(
        a=float(a),
        b=float(b - 2 * a * middle),
        c=float(a * middle * middle - b * middle + c),
        first=rates[0],
        last=rates[-1],
    )
    if a <= 0:
        return parabola, None, None
    vertex = -b / (2 * a)
    if not x[0] <= vertex <= x[-1]:
        return parabola, None, None
    factor = None
    freedom = len(rates) - 3
    if freedom > 0:
        residual = y - design @ np.asarray([a, b, c])
        covariance = float(residual @ residual) / freedom * np.linalg.inv(design.T @ design)
        # Delta method: the gradient of -b / 2a in (a, b, c).
        gradient = np.asarray([b / (2 * a * a), -1 / (2 * a), 0.0])
        factor = float(math.exp(math.sqrt(max(0.0, float(gradient @ covariance @ gradient)))))
    return parabola, float(math.exp(vertex + middle)), factor


def _next_grid(rates: Sequence[float], edge: str | None) -> tuple[float, ...]:
    """Return three rates beyond the edge, at the grid's own mean spacing."""
    if edge is None or len(rates) < 2:
        return ()
    spacing = (rates[-1] / rates[0]) ** (1 / (len(rates) - 1))
    if edge == "low":
        return tuple(rates[0] / spacing**k for k in (3, 2, 1))
    return tuple(rates[-1] * spacing**k for k in (1, 2, 3))
