"""Forecast the final loss of a training from its losses so far and its planned learning rates.

The logarithm of the loss follows an annealing law after Tissue et al. 2024 (arXiv:2408.11029)::

    final + fall h(x) / h(0.1) + cliff (e - e at the end) + deviation
    h(x) = (x + onset)^-power - (1 + onset)^-power

``x`` is the area under the learning rate so far as a share of the whole run's, ``e`` the rate as a
share of its peak, followed with a lag. So what the decay of a warmup-stable-decay schedule will
bring is counted before it begins. The deviation is a level and a slope that walk at random in
log x; the slope returns. All are drawn from a prior that was learned from trainings
(``tests/bench/forecast.py``), and weighted by how well they explain the losses.
"""

from __future__ import annotations

import json
import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from itertools import pairwise

import numpy as np
from numpy.typing import NDArray

from lehr.specs.stored import StoredSpec

Array = NDArray[np.float64]

PRIOR = (-1.45, -0.98, -3.24, -3.8, -6.59, -4.97, -2.51)
SPREAD = (0.51, 0.46, 1.69, 1.43, 1.32, 1.32, 0.37)
"""Mean and standard deviation of the logarithms of fall, power, onset, cliff, and of the standard
deviations of a loss, and of the level and the slope over a factor e of x."""
LAG = 0.03  # Of the whole run: how late the loss follows the rate.
DRAWS = 2000
_MOST_POINTS = 40  # More losses are averaged, in parts of equal factors of the step.
FEWEST = 3  # Losses after the warmup for a forecast.
_RISE = (0.02, 6.0)
"""A loss higher than the lowest so far by this share, and so many times the noise, has risen."""
_WILD = 0.08  # Scatter of the losses, as a share, from which on a training is ill.
_QUANTILES = (0.01, 0.025, 0.16, 0.5, 0.84, 0.975, 0.99)


@dataclass(frozen=True)
class RatePlan:
    """The learning rate of a run, from before its first step to its last."""

    steps: tuple[int, ...]
    rates: tuple[float, ...]


Planned = tuple[RatePlan | None, tuple[int, ...]]
"""Rates of a run, None where they are not known, and the steps after which its loss may jump."""
UNPLANNED: Planned = (None, ())


@dataclass(frozen=True)
class Forecast:
    """The final loss that is expected; only ``how`` where it cannot be known."""

    how: str  # What it was made from; else why there is none.
    value: float | None = None  # The median.
    likely: tuple[float, float] | None = None
    """The interval that should hold the final loss with 68 %; sure: with 95 %, most: 98 %."""
    sure: tuple[float, float] | None = None
    most: tuple[float, float] | None = None


def planned(spec: StoredSpec) -> Planned:
    """Return what is planned of a run of Lehr's trainer; of a program nothing is known."""
    return (_plan(json.dumps(spec.train)), spec.changes) if spec.train else UNPLANNED


@lru_cache(maxsize=512)
def _plan(train: str) -> RatePlan:
    from lehr_trainer.configs.schedule import lr_factor
    from lehr_trainer.configs.train import TrainConfig

    stages = TrainConfig.model_validate_json(train).course
    last = stages[-1].span.last
    ends = {step for span, _ in stages for step in (span.first + 1, span.last)}
    steps = sorted({0, 1, *ends, *(round(i * last / 400) for i in range(401))})
    rates = []
    for step in steps:
        own = next(config for span, config in stages if step <= span.last)
        rates.append(own.optimizer.lr * lr_factor(own.schedule, step, own.steps))
    return RatePlan(tuple(steps), tuple(rates))


@lru_cache(maxsize=4096)
def forecast(
    steps: tuple[int, ...],
    losses: tuple[float, ...],
    total: int | None,
    plan: RatePlan | None,
    changes: tuple[int, ...] = (),
) -> Forecast:
    """Forecast the loss at step ``total``.

    Args:
        steps: of the losses, ascending.
        losses: in nats, or another loss above 0.
        total: the run's last step; None if it is not known.
        plan: None where the rates are not known, as of a program.
        changes: steps after which other data or a sequence length begin, so the loss may jump.
    """
    if total is None:
        return Forecast("the number of its steps is not known")
    newest = steps[-1] if steps else 0
    begun = max([warmed_up(plan), *(step for step in changes if step < newest)])
    points = [(s, y) for s, y in zip(steps, losses, strict=True) if s > 0 and s >= begun]
    if ahead := [step for step in changes if newest <= step < total]:
        return Forecast(f"another stage or sequence length begins after step {ahead[0]:,}")
    if bad := [step for step, y in points if not 0 < y < math.inf]:
        return Forecast(f"the loss is no number above 0 at step {bad[0]:,}")
    if newest >= total:
        return Forecast("it has reached its last step")
    rates = plan or RatePlan((0, total), (1.0, 1.0))
    if not max(rates.rates) > 0:
        return Forecast("its learning rate is 0 at each step")
    if len(points) < FEWEST or _area(rates, [newest])[0] < 0.02:
        return Forecast(f"{len(points)} losses after the warmup; {FEWEST} and 2 % are needed")
    s, y = averaged(*np.array(points, np.float64).T)
    lowest = np.minimum.accumulate(y)
    noise = 0.6 * float(np.median(np.abs(np.diff(np.log(y), 2))))
    if noise > _WILD:
        return Forecast(f"the loss scatters by {noise:.0%} from one value to the next")
    risen = np.log(y / lowest) > max(_RISE[0], _RISE[1] * noise)
    if risen[-1]:
        since = s[len(s) - int(np.argmin(risen[::-1]))]
        return Forecast(f"the loss has risen from {lowest[-1]:.4g} since step {since:,.0f}")
    # Always the same draws, so that no forecast changes by itself.
    draws = PRIOR + np.random.default_rng(0).standard_normal((DRAWS, len(PRIOR))) * SPREAD
    logs, final, variance = explain(draws, rates, s[~risen], y[~risen], plan is not None)
    sums = weights_of(logs).cumsum()
    chosen = np.searchsorted(sums / sums[-1], (np.arange(2 * DRAWS) + 0.5) / (2 * DRAWS))
    normal = np.random.default_rng(0).standard_normal(2 * DRAWS)
    ends = np.quantile(final[chosen] + np.sqrt(variance[chosen]) * normal, _QUANTILES)
    a, b, c, median, d, e, f = (float(end) for end in np.exp(ends))
    until = f"from {len(points)} losses until step {newest:,}"
    wider = "; its later learning rates are not known, so the band is wider"
    how = f"{until}{' and the planned learning rates' if plan else wider}"
    return Forecast(how, median, (c, d), (b, e), (a, f))


def warmed_up(plan: RatePlan | None) -> int:
    """Return the step from which the rate rises no more."""
    if plan is None:
        return 0
    rises = zip(plan.steps[1:], plan.rates[1:], plan.rates[2:], strict=False)
    return next((step for step, rate, later in rises if later <= rate), 0)


def averaged(steps: Array, losses: Array) -> tuple[Array, Array]:
    """Average steps and losses in parts of equal factors of the step."""
    if len(steps) <= _MOST_POINTS:
        return steps, losses
    edges = np.geomspace(steps[0], steps[-1], _MOST_POINTS + 1)[1:-1]
    starts = np.unique(np.searchsorted(steps, [0.0, *edges], side="right"))
    counts = np.diff([*starts, len(steps)])
    return np.add.reduceat(steps, starts) / counts, np.add.reduceat(losses, starts) / counts


def _area(plan: RatePlan, steps: Sequence[float] | Array) -> Array:
    """Return the area under the rate until each step, as a share of the whole, [n]."""
    at, rates = np.asarray(plan.steps, np.float64), np.asarray(plan.rates)
    area = np.concatenate([[0.0], np.cumsum((rates[1:] + rates[:-1]) / 2 * np.diff(at))])
    share: Array = np.interp(steps, at, area / area[-1])
    return share


def _followed(plan: RatePlan, steps: Array) -> Array:
    """Return the rate as a share of its peak, followed up at once and down with a lag, [n]."""
    level, levels = 0.0, []
    kept = [0.0, *(math.exp(-(b - a) / plan.steps[-1] / LAG) for a, b in pairwise(plan.steps))]
    for rate, keep in zip(plan.rates, kept, strict=True):
        level = max(rate, rate + (level - rate) * keep)
        levels.append(level / max(plan.rates))
    followed: Array = np.interp(steps, plan.steps, levels)
    return followed


def explain(
    draws: Array, plan: RatePlan, steps: Array, losses: Array, known: bool = True
) -> tuple[Array, Array, Array]:
    """Return the log-likelihood of the losses for each draw, and the mean and the variance of the
    logarithm of the final loss, [N] each. It is a Kalman filter of level and slope.
    """
    fall, power, onset, cliff, noise, level, slope = np.exp(draws).T
    ends = np.append(steps, plan.steps[-1])
    x, rate = _area(plan, ends), _followed(plan, ends)

    heights = (np.append(x, 0.1) + onset[:, None]) ** -power[:, None]
    heights -= (1.0 + onset[:, None]) ** -power[:, None]
    law = fall[:, None] * heights[:, :-1] / heights[:, -1:] + cliff[:, None] * (rate - rate[-1])
    off = np.log(losses) - law[:, :-1]
    mean, bend = off[:, 0].copy(), np.zeros(len(draws))
    of_mean, both, of_bend = noise**2, np.zeros(len(draws)), slope**2
    logs = np.zeros(len(draws))
    for number, ahead in enumerate(np.diff(np.log(x)), start=1):
        # The exact transition of a level whose slope is an Ornstein-Uhlenbeck process: it returns.
        keep = math.exp(-ahead)
        reach, grown = 1.0 - keep, max(0.0, 2 * ahead - 3 + 4 * keep - keep**2)
        mean, bend = mean + reach * bend, keep * bend
        of_mean = of_mean + 2 * reach * both + reach**2 * of_bend
        of_mean += level**2 * ahead + slope**2 * grown
        both = keep * (both + reach * of_bend) + slope**2 * reach**2
        of_bend = keep**2 * of_bend + slope**2 * (1.0 - keep**2)
        if number == len(steps):
            break
        total, surprise = of_mean + noise**2, off[:, number] - mean
        logs -= (surprise**2 / total + np.log(total)) / 2
        mean, bend = mean + of_mean / total * surprise, bend + both / total * surprise
        of_bend = of_bend - both**2 / total
        both, of_mean = both * noise**2 / total, of_mean * noise**2 / total
    if not known:
        # The rate may fall to any share of its peak.
        mean = mean - cliff * np.random.default_rng(1).uniform(size=len(draws))
    return logs, mean, of_mean + noise**2


def weights_of(logs: Array, counting: float = 0.1) -> Array:
    """Return the weights of the draws. Where so few explain the losses that what else they have is
    chance, less of the likelihood counts: until a share ``counting`` of the draws does.
    """
    share = 1.0
    while True:
        weights: Array = np.exp(share * (logs - logs.max()))
        if not weights.sum() ** 2 / (weights**2).sum() < len(logs) * counting:
            return weights
        share *= 0.8
