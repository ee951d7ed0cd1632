"""The verdict on a learning rate: the best trial, where the best rate lies, and what to try next.

Trials sample a curve of loss over log learning rate. The estimate for the rates between them is a
distribution over curves (``lr_posterior``). From it come the recommended rate, the intervals that
hold the best rate with 68 and 95 %, the range in which any rate costs little, and the trials that
are expected to lower the cost most.
"""

from __future__ import annotations

import itertools
import math
import statistics
from bisect import bisect_left, bisect_right
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Literal

from lehr.analysis.noise import Noise, is_value, pooled_noise
from lehr.base.formats import scientific

if TYPE_CHECKING:
    from lehr.analysis.lr_posterior import Posterior

COST = 0.01  # Loss above the best that counts as little, in the metric's units (nats).
_WIDE = 4.0  # Factor over which a 95 % interval leaves the rate undecided.
_WORTH = 0.2  # More trials are worth it from this share of ``COST``, and of the cost without them.
_SEEDS = 2  # Seeds to add to each rate at once.
_NARROW = 1.5  # Factor between two trials below which another rate between them is of little use.

_STEP = 2.0  # Factor to the next rate where only one was tried.
_FAR = 1000.0
"""Factor beyond the rates with a loss that counts, from which any other rate brackets nothing."""

Range = tuple[float, float]
USED: dict[str, Range] = {"adamw": (2e-5, 0.3), "muon": (2e-4, 0.24), "unknown": (1e-6, 30.0)}
"""The lowest and highest published rate by optimizer; no others are proposed. AdamW: Devlin et al.
2019 (arXiv:1810.04805), Wortsman et al. 2023 (arXiv:2309.14322). Muon: Liu et al. 2025
(arXiv:2502.16982), Jordan's CIFAR-10 records. Unknown: up to those of SGD and LARS.
"""


@dataclass(frozen=True)
class RateResult:
    """The losses of one learning rate's seeds; none where it diverged or was pruned."""

    rate: float
    losses: tuple[float, ...]


@dataclass(frozen=True)
class LrFit:
    """The verdict of (learning rate, loss) pairs, lower loss being better."""

    best: float  # Learning rate with the lowest mean loss.
    recommended: float | None
    """The lowest point of the mean curve between losses, where the trials bracket a minimum."""
    likely: Range | None  # The interval that holds the best rate with 68 %.
    sure: Range | None  # The interval that holds the best rate with 95 %.
    bound: float | None
    """Set if the best trial is at an edge: with 95 % the best rate is above this (high edge) or
    below it (low edge)."""
    cheap: Range | None  # Any rate in it is expected to cost less than ``COST``.
    curves: Posterior | None
    edge: Literal["low", "high"] | None
    """The best is on this edge of the grid, so the grid does not bracket the minimum."""
    diverged: tuple[float, ...]  # Learning rates at which a seed's loss was not finite.
    noise: float | None
    """Standard deviation of loss between seeds at one learning rate, pooled; None with one seed."""
    next_rates: tuple[float, ...]
    """Learning rates to try: beyond the edge, or where a loss is expected to help most."""
    next_seeds: int = 0  # Seeds to add, where these help more than other rates.
    seeded_rates: tuple[float, ...] = ()
    """The rates to add them to: those in the 95 % interval, and one beside it on each side."""
    cost_after: float | None = None
    """The cost of the recommended rate that is expected after those trials."""
    trials: int = 0  # Their number.
    remarks: tuple[str, ...] = ()  # On trials that do not count, one sentence each.

    @property
    def undecided(self) -> bool:
        """The 95 % interval is wide, and its rates do not all cost little."""
        if self.sure is None or self.sure[1] / self.sure[0] <= _WIDE:
            return False
        low, high = self.cheap or (math.inf, 0.0)
        return self.sure[0] < low or self.sure[1] > high

    def notes(self, command: str | None = None, hours: float | None = None) -> list[str]:
        """Return what the verdict adds to a ranking, one sentence each.

        ``command`` adds the ``next_rates`` to the sweep, or the ``next_seeds``; ``hours`` are the
        GPU-hours of one trial so far.
        """
        out = [note for note in (self.range_note(), self.cost_note()) if note is not None]
        out += self.remarks
        if (advice := self.advice(command, hours)) is not None:
            out.insert(0 if self.curves is None else len(out), advice)
        if self.noise is not None:
            out.append(f"The noise between seeds is {self.noise:.2g} (one standard deviation).")
        elif self.curves is not None:
            low, high = self.curves.noise
            out.append(
                f"One seed for each rate: the noise between seeds is estimated as {low:.2g} to "
                f"{high:.2g} (one standard deviation, 68 %), from the curve and other trainings."
            )
        return out

    def advice(self, command: str | None = None, hours: float | None = None) -> str | None:
        """Return what to run next, as a sentence; None where nothing is known of it."""
        needed = self.trials * (hours or 0.0)
        time = f"about {needed:.2g}" if needed >= 0.01 else "under 0.01"
        time = f", {time} GPU-hours" if hours else ""
        amount = f" ({self.trials} trial{'s' * (self.trials > 1)}{time})" if self.trials else ""
        if self.curves is None or self.cost_after is None:
            if self.next_rates:
                few = "Fewer than three rates have a loss to compare, so there is no interval. "
                few = few if self.edge is None else ""
                return few + to_try(self.next_rates, command, amount)
            if self.curves is None or self.trials:
                return None  # What it would run next was tried, without a loss.
            least = _worth(self.curves.cost)
            return f"Nothing more to run: no rate or seed is expected to gain {least:.2g} of loss."
        if self.next_seeds:
            rates = "each rate" if command else _listed(self.seeded_rates)
            more = f"To try next: {self.next_seeds} more seeds of {rates}"
            more += "" if command else f", by `lehr seeds TRIAL -n {self.next_seeds}` for each"
        else:
            more = to_try(self.next_rates, None).rstrip(".")
        low, high = self.sure or (0.0, math.inf)
        beside = any(not low <= rate <= high for rate in self.next_rates)
        why = "A loss beside the 95 % interval shows how the curve rises. " if beside else ""
        add = f" Add {'it' if self.trials == 1 else 'them'}: `{command}`" if command else ""
        return (
            f"{more}{amount}. {why}The loss that a wrong rate costs is then expected to be "
            f"{self.cost_after:.2g} instead of {self.curves.cost:.2g}.{add}"
        )

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
        if self.undecided:
            low, high = (scientific(rate, 2) for rate in self.sure)
            return (
                f"The best of these is {scientific(self.best, 2)}, but rates from {low} to {high} "
                f"cannot be told apart{'' if self.noise else ' with one seed each'} (95 %); the "
                f"best is probably near {scientific(self.recommended, 2)}."
            )
        likely, sure = (_listed(both, " and ") for both in (self.likely, self.sure))
        return (
            f"The best learning rate is probably near {scientific(self.recommended, 2)}: between "
            f"{likely} with 68 %, and {sure} with 95 %."
        )

    @property
    def side(self) -> Literal["above", "below"]:
        """The side of the ``bound`` on which the best rate lies."""
        return "below" if self.edge == "low" else "above"

    def cost_note(self) -> str | None:
        """Return the range of rates that cost little, else what the recommended one may cost, as a
        sentence; None where the trials do not show it.
        """
        if self.curves is None:
            return None
        low, high = (scientific(rate, 2) for rate in self.cheap or (1.0, 1.0))
        if low == high:
            rate, cost = scientific(self.curves.recommended, 2), self.curves.cost
            known = "The best rate is not known exactly. "
            return f"{known}With {rate} the loss is expected to end {cost:.2g} above the lowest."
        return f"Any rate from {low} to {high} is expected to cost less than {COST:g} of loss."


def to_try(rates: Sequence[float], command: str | None, amount: str = "") -> str:
    """Return the advice to try these rates, with the command that adds them, if any."""
    plural, them = ("s", "them") if len(rates) > 1 else ("", "it")
    add = f" Add {them}: `{command}`" if command else ""
    return f"Learning rate{plural} to try next: {_listed(rates)}{amount}.{add}"


def _worth(cost: float) -> float:
    """Return the least fall of the cost that more trials are worth."""
    return _WORTH * max(COST, cost)


def _listed(rates: Iterable[float], separator: str = ", ") -> str:
    return separator.join(scientific(lr, 2) for lr in rates)


def rounded(rate: float) -> float:
    """Return the rate with two digits, as a proposed one has."""
    return float(f"{rate:.2g}")


def fit_learning_rate(
    points: Iterable[tuple[float, float]],
    pruned: Iterable[float] = (),
    used: Range = USED["adamw"],
    noise_elsewhere: Noise | None = None,
) -> LrFit | None:
    """Judge loss over learning rate; None when no loss is finite.

    Args:
        points: (learning rate > 0, loss) pairs; several of one rate are seeds of one trial. A trial
            with a loss that is NaN, infinite or beyond all bounds has diverged.
        pruned: learning rates of trials that were stopped because others were better. They have no
            loss to compare, but they bracket the best. A rate that also has a loss does not count
            as pruned.
        used: the lowest and highest rate that may be proposed.
        noise_elsewhere: between seeds of the same training in other sweeps.

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
    better = [lr for lr in rates if means[lr] <= statistics.median_low(means.values())]
    near, worse = (within_reach(some, better) for some in (by_rate, set(pruned) - set(by_rate)))
    tried = sorted([*near, *worse])
    # Rates that diverged or were pruned bracket the best, too.
    edge: Literal["low", "high"] | None = None
    if len(tried) > 1 and best in {tried[0], tried[-1]}:
        edge = "low" if best == tried[0] else "high"
    trials = (
        RateResult(lr, tuple(by_rate[lr]) if lr in means else ())
        for lr in sorted([*near, *_brackets(best, near, worse)])
    )
    from lehr.analysis.lr_posterior import posterior

    curves = posterior(tuple(trials), noise_elsewhere)
    bound = None
    if edge is not None:
        # The trials do not show what is beyond the edge. A bound for the best rate among those
        # tried also holds if the best rate lies beyond the edge.
        bound = None if curves is None else curves.bound(edge, 0.95)
        curves = None

    fit = LrFit(
        best=best,
        recommended=None if curves is None else curves.recommended,
        likely=None if curves is None else curves.interval(0.68),
        sure=None if curves is None else curves.interval(0.95),
        bound=bound,
        cheap=None if curves is None else curves.cheap(COST),
        curves=curves,
        edge=edge,
        diverged=tuple(lr for lr in sorted(by_rate) if lr not in means),
        noise=None if noise is None else noise.deviation,
        next_rates=(),
        remarks=tuple(_remarks(by_rate, pruned, near, tried)),
    )
    if len(means) > 1 and len(set(means.values())) == 1:
        equal = "All losses are equal: the rate made no difference. Does the training use it?"
        return replace(fit, remarks=(*fit.remarks, equal))  # Another rate will not help either.
    if curves is None or fit.sure is None:
        more = _between(tried, (best, best), used) if edge is None else _beyond(tried, edge, used)
        more = more if len(tried) > 1 else [best / _STEP, best * _STEP]
        return replace(fit, next_rates=_worth_trying(more, best, tried, worse, used))
    seeds = {lr: len(by_rate[lr]) for lr in near if lr in means}
    gaps = _between(tried, fit.sure, used)
    return _with_next(fit, curves, seeds, _worth_trying(gaps, best, tried, worse, used))


def within_reach(rates: Iterable[float], better: Sequence[float]) -> list[float]:
    """Return the rates that are not too far from the ``better`` ones to bracket the best."""
    low, high = min(better) / _FAR, max(better) * _FAR
    return sorted(rate for rate in rates if low <= rate <= high)


def _remarks(
    losses: Mapping[float, Sequence[float]],
    pruned: Iterable[float],
    near: Sequence[float],
    tried: Sequence[float],
) -> Iterator[str]:
    if far := sorted({*losses, *pruned} - set(tried)):
        yield (
            f"Left out: {_listed(far)}, over {_FAR:,.0f} times away from the better rates. Is it a "
            "typing error? A rate so far off does not show where the best one lies."
        )
    if partly := [lr for lr in near if 0 < sum(map(is_value, losses[lr])) < len(losses[lr])]:
        yield f"Counts as diverged, because one of its seeds did: {_listed(partly)}."


def _with_next(
    fit: LrFit, curves: Posterior, seeds: dict[float, int], rates: Sequence[float]
) -> LrFit:
    """Add the trials whose fall of the expected cost is the largest for each of them."""
    each = max(seeds.values())
    falls = {rate: curves.fall([(rate, each)]) for rate in rates}
    order = sorted(falls, key=falls.__getitem__, reverse=True)
    several = tuple(sorted(rate for rate in order[:2] if falls[rate] > falls[order[0]] / 2))
    ordered, (low, high) = sorted(seeds), fit.sure or (0.0, math.inf)
    first, last = bisect_left(ordered, low), bisect_right(ordered, high)
    near = tuple(ordered[max(first - 1, 0) : last + 1])
    choices = [
        (curves.fall([(rate, each) for rate in several]), len(several) * each, several, 0),
        (curves.fall([(rate, _SEEDS) for rate in near]), len(near) * _SEEDS, (), _SEEDS),
    ]
    choices = [choice for choice in choices if choice[0] >= _worth(curves.cost)]
    if not choices:
        return fit
    fall, trials, several, more = max(choices, key=lambda choice: choice[0] / choice[1])
    after = curves.cost - fall
    fit = replace(fit, next_rates=several, next_seeds=more, trials=trials, cost_after=after)
    return replace(fit, seeded_rates=near if more else ())


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


def _beyond(rates: Sequence[float], edge: Literal["low", "high"], used: Range) -> list[float]:
    """Return the rate one step beyond the edge, at the mean spacing of what was tried, or where the
    optimizer's range ends before it; none if that end is close.
    """
    step = (rates[-1] / rates[0]) ** (1 / (len(rates) - 1)) if len(rates) > 1 else _STEP
    least = min(_NARROW, step * 0.999)  # A narrow grid takes narrow steps.
    if edge == "low":
        beyond = min(max(rates[0] / step, used[0]), used[1])
        return [beyond] if rates[0] / beyond >= least else []
    beyond = min(rates[-1] * step, used[1])
    return [beyond] if beyond / rates[-1] >= least else []


def _between(tried: Sequence[float], sure: Range, used: Range) -> list[float]:
    """Return the middles of the gaps that may hold the best rate, and the rate one step beyond an
    end of the rates tried where the best may lie beyond it.
    """
    gaps = [
        math.sqrt(low * high)
        for low, high in itertools.pairwise(tried)
        if low <= sure[1] and high >= sure[0] and high / low >= _NARROW
    ]
    if sure[0] < tried[0]:
        gaps += _beyond(tried, "low", used)
    if sure[1] > tried[-1]:
        gaps += _beyond(tried, "high", used)
    return gaps
