"""Choose the next trials of a campaign: those that teach most of the target for each GPU-hour.

Each draw of the law (``analysis.laws``) gives losses to trials that may start. A regression of what
candidates cost on these losses, fitted on one half of the draws and judged on the other, gives how
much lower the regret is expected to be once they are known (Strong, Oakley & Brennan 2015). So does
the knowledge gradient (Frazier, Powell & Dayanik 2008); sets of trials compete with single ones,
since one may teach nothing (Frazier & Powell 2010). No state is kept: the same trials give the same
choice.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from functools import lru_cache

import numpy as np

from lehr.analysis.laws import Law, Observation, fit_law
from lehr.analysis.laws.law import scaled
from lehr.analysis.laws.model import Array
from lehr.analysis.laws.question import CampaignAnswer, CampaignTrial, Next, Question
from lehr.analysis.lr_fit import rounded

# Trials of the smallest rung before others are compared; more for each field after the first.
_FIRST = (5, 2)
_SPREAD = (0.08, 0.84)  # Lowest quantile of the best values that they take; range of quantiles.
# Quantiles, by each field, of the best values of a rung at which it may be tried; sets of them.
_RANKS = (0.03, 0.15, 0.35, 0.5, 0.65, 0.85, 0.97)
_SEVERAL = ((0, 6), (1, 5), (2, 4), (0, 3, 6), (1, 3, 5), (0, 2, 4, 6), (1, 2, 4, 5))
_SETS = (*((k,) for k in range(7)), *_SEVERAL, (0, 1, 3, 5, 6), tuple(range(7)))
_LITTLE = 0.03  # Share of what is lacking: trials that gain less are not worth the budget.
_ENOUGH = 0.2  # How much what is already good enough still counts, over what is not.
_LEAST = 3  # Losses from which there is an answer.
# Times the regret from which a candidate is left out, and above which a loss counts no more.
_FAR = (6.0, 20.0)
_RIDGE = 2.0  # Draws that say nothing, in each regression.


def choose(
    question: Question, trials: Sequence[CampaignTrial], hours_left: float, free: int, seed: int = 0
) -> Next:
    """Return the trials to start now, at most ``free`` that need at most ``hours_left``.

    ``trials`` are all so far, with those that are queued or running; ``hours_left`` the GPU-hours
    that are neither spent nor needed by these. ``seed`` is that of a place's first trial.

    Raises:
        ValueError: the question has no rung or no field, or its rungs are not by ascending hours.
    """
    return _choose(question, tuple(trials), hours_left, free, seed)


@lru_cache(maxsize=64)
def _choose(
    question: Question, trials: tuple[CampaignTrial, ...], hours_left: float, free: int, seed: int
) -> Next:
    hours = [rung.hours for rung in question.rungs]
    if not question.fields or not hours or hours != sorted(hours):
        raise ValueError("a campaign needs fields, and rungs by ascending hours")
    ends = [trial for trial in trials if trial.loss is not None]
    law = believed(question, ends)
    if law is None:
        none = "No law explains the losses of these trials. Is the metric a loss?"
        return Next((), none, none, None)
    ended = sum(math.isfinite(end.loss or 0.0) for end in ends)
    answer = law.answer() if ended >= _LEAST else None
    stop = None if answer is None else _good_enough(question, answer)
    if stop is None and hours_left < hours[0]:
        stop = f"The budget holds no further trial: {hours_left:.2g} GPU-hours are left, and the "
        stop += f"smallest needs {hours[0]:.2g}."
    first = _FIRST[0] + _FIRST[1] * (len(question.fields) - 1)
    if not ended and len(trials) == len(ends) >= first:
        first *= 2  # All diverged: what is believed, and so what is tried, is lower now.
    # Counted over all rungs: which one is the smallest may change with what trials cost.
    most = 0 if stop else min(free, int(hours_left / hours[0]), first - len(trials))
    if most > 0 and (more := _first(question, law, trials, most, seed)):
        why = f"It starts with {first} trials of {question.rungs[0].name}, the smallest, spread "
        return Next(more, why + "over the values that may be best.", None, answer)
    if stop is None and not ended and len(trials) == len(ends):
        stop = f"All {len(trials)} trials diverged. Lower the range of what is decided, or look "
        stop += "for the cause in one run: warmup, clipping, precision, data."
    if stop is not None or free < 1 or not ended:
        return Next((), stop or "It waits for trials that run.", stop, answer)
    return _Decision(question, law, trials, seed).next(answer, hours_left, free)


@lru_cache(maxsize=64)
def prospects(
    question: Question, trials: tuple[CampaignTrial, ...], hours: tuple[float, ...], seed: int = 0
) -> list[tuple[float, tuple[float, ...]]]:
    """Return for each amount of GPU-hours how many of them would be used, and which share of the
    width of each value's interval, and of the loss's, is expected to be left; none where the answer
    is good enough. Of 28 drawn truths, half more budget was expected to leave 0.92 and 0.84 on
    average, and left 0.90 and 0.80 (tenth: 0.98 and 0.99, then 0.98 and 0.99).
    """
    law = believed(question, trials)
    if law is None or not law.domain or _good_enough(question, law.answer()):
        return []
    decision, found = _Decision(question, law, trials, seed), []
    for some in hours:
        places, _ = decision.spend(some, len(decision.places))
        found.append((decision.hours(places), decision.left(decision.pending + places)))
    return found


def believed(question: Question, trials: Iterable[CampaignTrial]) -> Law | None:
    """Fit the law to trials that have ended; None where it explains none of them."""
    settings = [rung.setting for rung in question.rungs]
    ends = tuple(
        Observation(settings[t.rung], t.values, t.loss, t.doubt)
        for t in trials
        if t.loss is not None
    )
    # In an order that does not change with what trials cost, so that the same trials are one fit.
    others = tuple(sorted(settings, key=lambda own: (own.non_embedding, own.tokens)))
    aim, published = question.target, question.published
    return fit_law(ends, question.fields, aim, published=published, others=others)


def _good_enough(question: Question, answer: CampaignAnswer) -> str | None:
    half, within = (answer.likely[1] - answer.likely[0]) / 2, question.loss_within
    if answer.regret > question.regret or (within is not None and half > within):
        return None
    known = "" if within is None else f", and its loss is known within {half:.2g} (68 %)"
    return f"Good enough: the values are expected to cost {answer.regret:.2g} of loss{known}."


def _snapped(
    question: Question, rung: int, values: Iterable[float], taken: Iterable[tuple[float, ...]]
) -> tuple[float, ...] | None:
    """Round values, or take the nearest that may be tried and is not taken; None: all are."""
    points, pairs = question.rungs[rung].points, tuple(zip(question.fields, values, strict=True))
    if points is None:
        return tuple(rounded(v) if field.log else float(f"{v:.3g}") for field, v in pairs)

    def apart(point: tuple[float, ...]) -> float:
        return sum(
            float(scaled(f, p) - scaled(f, v)) ** 2 for (f, v), p in zip(pairs, point, strict=True)
        )

    return min(set(points) - set(taken), key=lambda p: (apart(p), p), default=None)


def _first(
    question: Question, law: Law, trials: Sequence[CampaignTrial], count: int, seed: int
) -> tuple[CampaignTrial, ...]:
    """Return the first trials that are not started: places that fill the space (Richtmyer 1951)."""
    best = law.best_at(question.rungs[0].setting)
    taken = [trial.values for trial in trials if trial.rung == 0]
    more: list[CampaignTrial] = []
    for k in range(len(trials), len(trials) + count):
        values = (
            float(np.quantile(column, _SPREAD[0] + _SPREAD[1] * ((0.5 - k * math.sqrt(prime)) % 1)))
            for column, prime in zip(best.T, (2, 3, 5, 7, 11, 13, 17, 19), strict=False)
        )
        if (place := _snapped(question, 0, values, taken)) is None:
            break
        taken.append(place)
        more.append(CampaignTrial(0, place, seed, None))
    return tuple(more)


class _Decision:
    """The trials whose gain for each GPU-hour is the largest."""

    def __init__(
        self, question: Question, law: Law, trials: tuple[CampaignTrial, ...], seed: int
    ) -> None:
        self.question, self.law, self.trials, self.seed = question, law, trials, seed
        self.draw = np.random.default_rng(0)
        self.half = self.draw.permutation(len(law.draws)) % 2 == 0
        risk = law.excess.mean(axis=0)
        near, most = risk <= _FAR[0] * risk.min() + 1e-12, _FAR[1] * risk.min() + 1e-12
        self.excess = np.minimum(law.excess[:, near], most)
        """Of each candidate that may turn out best, [N, G]."""
        self.now = int(self.excess.mean(axis=0).argmin())
        self.losses, around = law.outcome(question.target, law.recommended)
        self.around = float(np.median(around**2))  # Variance of one trial around the law.
        self.spread = math.sqrt(float(self.losses.var()) + self.around)
        self.places: list[CampaignTrial] = []
        self.features: list[Array] = []
        """Of each place: the loss that each draw gives it, and its square, [N, 2]."""
        self.pending = tuple(self._add(trial) for trial in trials if trial.loss is None)
        self.sets = [each for k in range(len(question.rungs)) for each in self._sets(k)]

    def next(self, answer: CampaignAnswer | None, hours_left: float, free: int) -> Next:
        """Return the trials to start now."""
        chosen, why = self.spend(hours_left, free)
        if chosen:
            return Next(tuple(self.places[place] for place in chosen), why, None, answer)
        if self.pending:
            return Next((), "What runs is expected to teach enough for now.", None, answer)
        loss = f" or the loss's doubt of {self.spread:.2g}" * (
            self.question.loss_within is not None
        )
        stop = (
            f"Nothing more would help: no trials of the {hours_left:.2g} GPU-hours left are "
            f"expected to lower the regret of {self.law.regret:.2g}{loss} by {_LITTLE:.0%}."
        )
        return Next((), stop, stop, answer)

    def spend(self, hours_left: float, free: int) -> tuple[tuple[int, ...], str]:
        """Return the places that are worth so many GPU-hours, and why the first ones are."""
        sets = self.sets
        known, chosen, why = self.pending, tuple[int, ...](), ""
        lacking = self._lacking(self.law.regret, self.spread)
        while len(chosen) < free:
            before = self._gain(known) * (1, 0, 1, 1)
            fitting = [each for each in sets if self.hours(each) <= hours_left]
            gains = [(each, self._gain(known + each) - before) for each in fitting]
            if max((gain[0] for _, gain in gains), default=0.0) < _LITTLE * lacking:
                break
            best, gain = max(gains, key=lambda e: (e[1][0] - e[1][1]) / self.hours(e[0]))
            why = why or self._why(best, gain)
            some = best[: free - len(chosen)]
            chosen, known, hours_left = chosen + some, known + some, hours_left - self.hours(some)
            sets = [each for each in sets if not set(each) & set(best)]
        return chosen, why

    def left(self, places: tuple[int, ...]) -> tuple[float, ...]:
        """Return what trials are expected to leave of the width of each decided value's interval,
        and of the loss's: shares of standard deviations.
        """
        best = [
            np.log(own) if f.log else own
            for f, own in zip(self.law.fields, self.law.best.T, strict=True)
        ]
        asked = np.c_[*best, self.losses]
        off = asked - self._expected(places, asked)
        variance = np.minimum((off**2).mean(axis=0), now := asked.var(axis=0))
        around = np.append(np.zeros(len(best)), self.around)
        return tuple(np.sqrt((variance + around) / (now + around + 1e-30)).tolist())

    def hours(self, places: tuple[int, ...]) -> float:
        return sum(self.question.rungs[self.places[place].rung].hours for place in places)

    def _why(self, places: tuple[int, ...], gain: Array) -> str:
        regret, loss = (f"{max(fall, 0.0):.2g}" for fall in gain[2:].tolist())
        loss = f" and the loss's doubt by {loss}" * (self.question.loss_within is not None)
        trials = f"{len(places)} trial{'s' * (len(places) > 1)}"
        rung = self.question.rungs[self.places[places[0]].rung].name
        return (
            f"{trials} of {rung} for {self.hours(places):.2g} GPU-hours: expected to lower the "
            f"regret by {regret}{loss}, the most for each GPU-hour."
        )

    def _add(self, trial: CampaignTrial) -> int:
        """Add a place, and return its index."""
        losses, around = self.law.outcome(self.question.rungs[trial.rung].setting, trial.values)
        losses = losses + around * self.draw.standard_normal(len(losses))
        low, middle, high = np.quantile(losses, (0.16, 0.5, 0.84))
        scaled = np.clip(2 * (losses - middle) / (high - low), -3, 3)
        self.places.append(trial)
        self.features.append(np.stack([scaled, scaled**2], axis=1))
        return len(self.places) - 1

    def _sets(self, rung: int) -> list[tuple[int, ...]]:
        """Return the sets of trials of a rung that may be started."""
        best = self.law.best_at(self.question.rungs[rung].setting)
        tried = [trial for trial in self.trials if trial.rung == rung]
        known: dict[tuple[float, ...], int] = {}
        sets: dict[tuple[int, ...], None] = {}
        for column in best.T:
            order, ranks = column.argsort(), []
            for rank in _RANKS:
                some = best[order[max(0, int(rank * len(order)) - 15) :][:30]]
                values = np.median(some, axis=0).tolist()
                place = _snapped(self.question, rung, values, {trial.values for trial in tried})
                if place is None:
                    return []
                if place not in known:
                    seeds = [trial.seed for trial in tried if trial.values == place]
                    seed = max(seeds, default=self.seed - 1) + 1
                    known[place] = self._add(CampaignTrial(rung, place, seed, None))
                ranks.append(known[place])
            sets |= {tuple(dict.fromkeys(ranks[n] for n in group)): None for group in _SETS}
        sets[tuple(known.values())] = None
        return list(sets)

    def _lacking(self, regret: float, spread: float) -> float:
        """Return how far an answer is from the asked one: what is good enough counts little."""
        parts = [regret / max(self.question.regret, 1e-9)]
        if self.question.loss_within is not None:
            parts.append(spread / self.question.loss_within)
        return sum(part if part > 1 else 1 - _ENOUGH * (1 - part) for part in parts)

    def _gain(self, places: tuple[int, ...]) -> Array:
        """Return how much trials are expected to lower what is lacking, with its standard error,
        the regret, and the loss's doubt: by what each half of the draws teaches of the other.
        """
        if not places:
            return np.zeros(4)
        asked = np.c_[self.excess, self.losses]
        expected = self._expected(places, asked)
        rows = np.arange(len(asked))
        falls = self.excess[:, self.now] - self.excess[rows, expected[:, :-1].argmin(axis=1)]
        left = self.losses - expected[:, -1]
        regret, unit = float(falls.mean()), max(self.question.regret, 1e-9)
        variance = min(float((left**2).mean()), float(self.losses.var()))
        spread = math.sqrt(variance + self.around)
        lacking = self._lacking(max(self.law.regret - regret, 0.0), spread)
        value = self._lacking(self.law.regret, self.spread) - lacking
        error = float(falls.std()) / math.sqrt(len(falls)) / unit
        error *= 1.0 if self.law.regret > unit else _ENOUGH
        return np.array([value, error, regret, self.spread - spread])

    def _expected(self, places: tuple[int, ...], asked: Array) -> Array:
        """Return what each half of the draws expects of the other, by the losses at the places."""
        terms = np.ones((len(self.half), 1))
        terms = np.concatenate([terms, *(self.features[place] for place in places)], axis=1)
        expected = np.empty_like(asked)
        for some in (self.half, ~self.half):
            square = terms[some].T @ terms[some] + _RIDGE * np.eye(terms.shape[1])
            expected[~some] = terms[~some] @ np.linalg.solve(square, terms[some].T @ asked[some])
        return expected
