"""The verdict on a learning rate: the best trial, where the best rate lies, and what to try next.

Trials sample a curve of loss over log learning rate. The estimate for the rates between them is a
distribution over curves (``lr_posterior``). From it come the recommended rate, the intervals that
hold the best rate with 68 and 95 %, and the range in which any rate costs little.
"""

from __future__ import annotations

import itertools
import math
from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Literal

from lehr.analysis.lr_posterior import Posterior, RateResult, high_ground, posterior
from lehr.analysis.noise import is_value, pooled_noise
from lehr.analysis.significance import within_noise
from lehr.formats import scientific

COST = 0.01
"""Loss above the best that counts as little, in the metric's units (nats)."""
_WIDE = 4.0
"""Factor over which a 95 % interval leaves the rate undecided."""
_LIKELY_GAP = 0.15
"""Probability from which a gap between two trials is worth another trial."""
_NARROW = 1.5
"""Factor between two trials below which another rate between them is of little use."""

_STEP = 2.0
"""Factor to the next rate where only one was tried."""
_FAR = 1000.0
"""Factor beyond the rates with a loss that counts, from which any other rate brackets nothing."""
_DIGITS = 2
"""Digits of a proposed rate."""

Range = tuple[float, float]
USED: dict[str, Range] = {"adamw": (2e-5, 0.3), "muon": (2e-4, 0.24), "unknown": (1e-6, 30.0)}
"""The lowest and highest published rate by optimizer; no others are proposed. AdamW: Devlin et al.
2019 (arXiv:1810.04805), Wortsman et al. 2023 (arXiv:2309.14322). Muon: Liu et al. 2025
(arXiv:2502.16982), Jordan's CIFAR-10 records. Unknown: up to those of SGD and LARS.
"""


@dataclass(frozen=True)
class LrFit:
    """The verdict of (learning rate, loss) pairs, lower loss being better."""

    best: float
    """Learning rate with the lowest mean loss."""
    best_loss: float
    recommended: float | None
    """The lowest point of the mean curve between losses, where the trials bracket a minimum."""
    likely: Range | None
    """The interval that holds the best rate with 68 %."""
    sure: Range | None
    """The interval that holds the best rate with 95 %."""
    bound: float | None
    """Set if the best trial is at an edge: with 95 % the best rate is above this (high edge) or
    below it (low edge)."""
    cheap: Range | None
    """Any rate in it is expected to cost less than ``COST``."""
    curves: Posterior | None
    edge: Literal["low", "high"] | None
    """The best is on this edge of the grid, so the grid does not bracket the minimum."""
    diverged: tuple[float, ...]
    """Learning rates at which no loss was finite."""
    noise: float | None
    """Standard deviation of loss between seeds at one learning rate, pooled; None with one seed."""
    within_noise: tuple[float, ...]
    """Learning rates whose mean loss is within the noise of the best: the 95 % interval of the
    difference holds zero.
    """
    next_rates: tuple[float, ...]
    """Learning rates to try: beyond the edge, or between trials that do not decide."""
    undecided: bool
    """The 95 % interval is wide, and its rates do not all cost little."""

    def notes(self, command: str | None = None) -> list[str]:
        """Return what the verdict adds to a ranking, one sentence each.

        Args:
            command: adds the ``next_rates`` to the sweep, or seeds where rates do not help.
        """
        out = []
        if self.next_rates and not self.undecided:
            few = "Fewer than three rates have a loss to compare, so there is no interval. "
            out.append(f"{few if self.edge is None else ''}{to_try(self.next_rates, command)}")
        out += [note for note in (self.range_note(), self.cost_note()) if note is not None]
        if self.undecided:
            out.append(self._undecided_note(command))
        if self.noise is not None:
            noise = f"The noise between seeds is {self.noise:.2g} (one standard deviation)"
            if len(self.within_noise) > 1:
                noise += f"; within it, these are equal: {_listed(self.within_noise)}"
            out.append(f"{noise}.")
        elif self.recommended is not None or self.bound is not None:
            out.append(
                "With one seed for each rate the noise between seeds is unknown: it is assumed to "
                "be the same at every rate, and estimated from how smooth the curve is."
            )
        return out

    def range_note(self) -> str | None:
        """Return where the best rate lies, as a sentence; None where the trials do not show it."""
        if self.bound is not None:
            side = self.side
            return (
                f"The best learning rate is {side} {scientific(self.bound, 2)} with 95 %; these "
                f"trials do not show how far {side}."
            )
        if self.recommended is None or self.likely is None or self.sure is None:
            return None
        return (
            f"The best learning rate is probably near {scientific(self.recommended, 2)}: between "
            f"{_between(self.likely)} with 68 %, and {_between(self.sure)} with 95 %."
        )

    @property
    def side(self) -> Literal["above", "below"]:
        """The side of the ``bound`` on which the best rate lies."""
        return "below" if self.edge == "low" else "above"

    def cost_note(self) -> str | None:
        """Return the range of rates that cost little, else what the recommended one may cost, as a
        sentence; None where the trials do not show it.
        """
        if self.cheap is None:
            if self.curves is None:
                return None
            return (
                "The best rate is not known exactly. With the recommended one the loss is expected "
                f"to end {self.curves.cost:.2g} higher than with the best."
            )
        low, high = self.cheap
        return (
            f"Any rate from {scientific(low, 2)} to {scientific(high, 2)} is expected to cost less "
            f"than {COST:g} of loss."
        )

    def _undecided_note(self, command: str | None) -> str:
        if self.next_rates:
            return to_try(self.next_rates, command)
        more = "The trials are close together; more seeds would make the interval narrower"
        if command:
            return f"{more}. Add them: `{command}`"
        return f"{more}: give the sweep `seeds: [0, 1, 2]`."


def to_try(rates: Sequence[float], command: str | None) -> str:
    """Return the advice to try these rates, with the command that adds them, if any."""
    plural, them = ("s", "them") if len(rates) > 1 else ("", "it")
    add = f" Add {them}: `{command}`" if command else ""
    return f"Learning rate{plural} to try next: {_listed(rates)}.{add}"


def _between(both: Range) -> str:
    return f"{scientific(both[0], 2)} and {scientific(both[1], 2)}"


def _listed(rates: Iterable[float]) -> str:
    return ", ".join(scientific(lr, 2) for lr in rates)


def rounded(rate: float) -> float:
    """Return the rate with as many digits as a proposed one has."""
    return float(f"{rate:.{_DIGITS}g}")


def fit_learning_rate(
    points: Iterable[tuple[float, float]],
    pruned: Iterable[float] = (),
    used: Range = USED["adamw"],
) -> LrFit | None:
    """Judge loss over learning rate; None when no loss is finite.

    Args:
        points: (learning rate > 0, loss) pairs; several of one rate are seeds of one trial. A trial
            with a loss that is NaN, infinite or beyond all bounds has diverged.
        pruned: learning rates of trials that were stopped because others were better. They have no
            loss to compare, but they bracket the best. A rate that also has a loss does not count
            as pruned.
        used: the lowest and highest rate that may be proposed.

    Raises:
        ValueError: a learning rate is not positive and finite.
    """
    by_rate: dict[float, list[float]] = defaultdict(list)
    for lr, loss in points:
        if not 0 < lr < math.inf:
            raise ValueError(f"learning rate {lr} is not positive and finite")
        by_rate[lr].append(loss)
    means = {
        lr: math.fsum(losses) / len(losses)
        for lr, losses in sorted(by_rate.items())
        if all(is_value(loss) for loss in losses)
    }
    if not means:
        return None
    rates = list(means)
    best = min(rates, key=means.__getitem__)
    noise = pooled_noise([losses for lr, losses in by_rate.items() if lr in means])
    low = [lr for lr, high in zip(rates, high_ground([*means.values()]), strict=True) if not high]
    near, worse = (
        sorted(lr for lr in some if low[0] / _FAR <= lr <= low[-1] * _FAR)
        for some in (by_rate, set(pruned) - set(by_rate))
    )
    tried = sorted([*near, *worse])
    edge = _edge(best, tried, means)
    trials = (
        RateResult(lr, means.get(lr), len(by_rate[lr]) if lr in means else 1)
        for lr in sorted([*near, *_brackets(best, near, worse)])
    )
    curves = posterior(tuple(trials), None if noise is None else noise.deviation)
    bound = None
    if edge is not None:
        # The trials do not show what is beyond the edge. A bound for the best rate among those
        # tried also holds if the best rate lies beyond the edge.
        bound = None if curves is None else curves.bound(edge, 0.95)
        curves = None
    likely = sure = cheap = None
    undecided = False
    next_rates = _beside(best, tried) if edge is None else _beyond(tried, edge, used)
    if curves is not None:
        likely, sure = (
            _including(curves.interval(share), curves.recommended) for share in (0.68, 0.95)
        )
        cheap = curves.cheap(COST)
        costly = cheap is None or sure[0] < cheap[0] or sure[1] > cheap[1]
        undecided = costly and sure[1] / sure[0] > _WIDE
        next_rates = _between_trials(tried, curves) if undecided else ()
    next_rates = _worth_trying(next_rates, best, tried, worse, used)
    return LrFit(
        best=best,
        best_loss=means[best],
        recommended=None if curves is None else curves.recommended,
        likely=likely,
        sure=sure,
        bound=bound,
        cheap=cheap,
        curves=curves,
        edge=edge,
        diverged=tuple(lr for lr in sorted(by_rate) if lr not in means),
        noise=None if noise is None else noise.deviation,
        within_noise=()
        if noise is None
        else tuple(
            lr
            for lr in rates
            if within_noise(means[lr] - means[best], noise, (len(by_rate[lr]), len(by_rate[best])))
        ),
        next_rates=next_rates,
        undecided=undecided,
    )


def _including(interval: Range, rate: float) -> Range:
    """Widen an interval to the recommended rate, which other weights choose."""
    return min(interval[0], rate), max(interval[1], rate)


def _edge(
    best: float, tried: Sequence[float], means: dict[float, float]
) -> Literal["low", "high"] | None:
    """Return the edge of the grid that the best is on; None if there are rates on both sides, which
    may have diverged or been pruned.
    """
    if len(tried) < 2 or len(means) == 0:
        return None
    if best == tried[0]:
        return "low"
    return "high" if best == tried[-1] else None


def _brackets(best: float, judged: Sequence[float], pruned: Sequence[float]) -> list[float]:
    """Return the nearest pruned rate on each side of the best where no other rate brackets it."""
    below = [rate for rate in pruned if rate < best == judged[0]]
    above = [rate for rate in pruned if rate > best == judged[-1]]
    return [*below[-1:], *above[:1]]


def _worth_trying(
    rates: Iterable[float],
    best: float,
    tried: Sequence[float],
    pruned: Sequence[float],
    used: Range,
) -> tuple[float, ...]:
    """Round rates, and drop those that were tried, those at a pruned one or beyond it, and those
    that the optimizer is not used with.
    """
    known = {rounded(rate) for rate in tried}
    low = max((rate for rate in pruned if rate < best), default=0.0)
    high = min((rate for rate in pruned if rate > best), default=math.inf)
    kept = (rate for rate in map(rounded, rates) if rate not in known and low < rate < high)
    return tuple(rate for rate in dict.fromkeys(kept) if used[0] <= rate <= used[1])


def rates_below(tried: Iterable[float], used: Range = USED["adamw"]) -> tuple[float, ...]:
    """Return a rate to try where all that were tried diverged; none where none was tried."""
    rates = sorted(set(tried))
    return tuple(map(rounded, _beyond(rates, "low", used))) if rates else ()


def _beyond(rates: Sequence[float], edge: Literal["low", "high"], used: Range) -> tuple[float, ...]:
    """Return the rate one step beyond the edge, at the mean spacing of what was tried, or where the
    optimizer's range ends before it; none if that is close.
    """
    step = (rates[-1] / rates[0]) ** (1 / (len(rates) - 1)) if len(rates) > 1 else _STEP
    if edge == "low":
        beyond = max(rates[0] / step, used[0])
        return (beyond,) if rates[0] / beyond >= _NARROW else ()
    beyond = min(rates[-1] * step, used[1])
    return (beyond,) if beyond / rates[-1] >= _NARROW else ()


def _beside(best: float, tried: Sequence[float]) -> tuple[float, ...]:
    """Return the geometric middles of the gaps on both sides of the best, unless they are small.

    One rate alone has no gap: its half and its double.
    """
    at = math.log(best)
    if len(tried) == 1:
        return best / _STEP, best * _STEP
    place = tried.index(best)
    beside = [math.log(rate) for rate in (tried[place - 1], tried[place + 1])]
    gaps = [one for one in beside if abs(one - at) >= math.log(_NARROW)]
    return tuple(math.exp((at + one) / 2) for one in gaps)


def _between_trials(tried: Sequence[float], curves: Posterior) -> tuple[float, ...]:
    """Return the middles of the two gaps that most likely hold the best rate."""
    gaps = []
    for low, high in itertools.pairwise(tried):
        probability = curves.probability(low, high)
        if probability >= _LIKELY_GAP and high / low >= _NARROW:
            gaps.append((probability, math.sqrt(low * high)))
    return tuple(sorted(rate for _, rate in sorted(gaps, reverse=True)[:2]))
