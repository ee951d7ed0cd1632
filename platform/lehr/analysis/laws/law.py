"""Fit the law of the final loss to trainings, and predict from it: always with its doubt."""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cached_property, lru_cache

import numpy as np

from lehr.analysis.laws import model as columns
from lehr.analysis.laws.model import Array, Coordinates, Losses, Model, batch_middle, knee
from lehr.analysis.laws.question import CampaignAnswer, Field
from lehr.analysis.lr_fit import Range
from lehr.analysis.lr_rules import Quantity, Setting
from lehr.analysis.sampler import sample
from lehr.base.formats import amount

_DRAWS = 600
# Coordinates over the values of one and of two fields, among which the recommended ones are chosen.
_GRIDS = ((65,), (25, 17))
# Times the lowest loss of its rung from which a loss at a higher rate counts as diverged: training
# broke, and how high it ended does not matter.
_LOST = 1.25


@dataclass(frozen=True)
class Observation:
    """What one training ended at."""

    setting: Setting
    values: tuple[float, ...]  # One for each field.
    loss: float  # Infinite or NaN: it diverged.
    doubt: float = 0.0  # Standard deviation of a loss that is a forecast.


@dataclass(frozen=True, eq=False)
class Law:
    """Draws of the law that agree with trainings."""

    model: Model
    draws: Array  # [N, K]: the columns of ``laws.model``.
    fields: tuple[Field, ...]
    target: Setting
    rungs: tuple[Setting, ...]  # Those with own deviations.
    observations: tuple[Observation, ...]
    # Lowest and highest measured parameters, tokens, width, depth and batch; empty: none.
    domain: dict[str, Range]

    def places(self, trials: Sequence[tuple[Setting, Sequence[float]]]) -> Coordinates:
        """Return the places of settings with values; ValueError for a setting not in ``rungs``."""
        return _places(self.fields, self.target, self.rungs, trials)

    def outcome(self, setting: Setting, values: Sequence[float]) -> tuple[Array, Array]:
        """Return the loss of a training by each draw, and one trial's deviation from it, [N]."""
        places = self.places([(setting, values)])
        above, noise, misfit, _ = self.model.cost(self.draws, places)
        loss = self.model.level(self.draws, places) + above
        return loss[:, 0], np.hypot(noise, misfit)[:, 0]

    def best_loss(self, setting: Setting) -> Array:
        """Return the loss at a setting's best values by each draw, [N], without noise."""
        places = self.places([(setting, [field.low for field in self.fields])])
        return self.model.level(self.draws, places)[:, 0]

    def best_at(self, setting: Setting) -> Array:
        """Return the best values of each draw for a setting, [N, fields]: a batch within its range,
        which follows the knee.
        """
        draws, place = (
            self.draws,
            self.places([(setting, [float(_value(f, 0.0)) for f in self.fields])]),
        )
        best, other = np.empty((len(draws), len(self.fields))), columns.COLUMNS
        for k, field in enumerate(self.fields):
            if field.role == "batch":
                ends = np.log2(
                    np.array([field.low, field.high]) / batch_middle(self.fields, self.target)
                )
                target = draws[:, columns.KNEE]
                over = np.clip(target + draws[:, columns.OFFSET], *ends)
                over += knee(draws, place)[:, 0] - target
                best[:, k] = batch_middle(self.fields, self.target) * np.exp2(over)
                place = place._replace(batch=over[:, None])
            elif field.role == "other":
                best[:, k] = _value(field, np.clip(draws[:, other], -2, 2))
                other += 2
        for k, field in enumerate(self.fields):
            if field.role == "rate":
                best[:, k] = np.exp2(self.model.best_rate(draws, place)[:, 0])
                if _rung(setting, self.fields) == _rung(self.target, self.fields):
                    best[:, k] = np.clip(best[:, k], field.low, field.high)
        return best

    @cached_property
    def best(self) -> Array:
        """The best values at the target of each draw, [N, fields]."""
        return self.best_at(self.target)

    @cached_property
    def candidates(self) -> Array:
        """Values at the target among which the recommended ones are, [G, fields]."""
        if len(self.fields) > len(_GRIDS):  # A grid would be too large.
            return np.concatenate([self.best, np.median(self.best, axis=0)[None]])
        lines = []
        sizes = _GRIDS[len(self.fields) - 1]
        for field, size, best in zip(self.fields, sizes, self.best.T, strict=True):
            low, high = np.quantile(scaled(field, best), (0.005, 0.995))
            lines.append(_value(field, np.linspace(max(low, -2.0), min(high, 2.0), size)))
        return np.stack([grid.ravel() for grid in np.meshgrid(*lines, indexing="ij")], axis=1)

    @cached_property
    def excess(self) -> Array:
        """Loss that each candidate costs above the best one of each draw, [N, G]."""
        places = self.places([(self.target, row) for row in self.candidates.tolist()])
        cost = self.model.cost(self.draws, places)[0]
        return np.asarray(cost - cost.min(axis=1, keepdims=True))

    @property
    def recommended(self) -> tuple[float, ...]:
        """The values that are expected to cost least."""
        return tuple(self.candidates[self.excess.mean(axis=0).argmin()].tolist())

    @property
    def regret(self) -> float:
        """The loss that the recommended values are expected to cost above the best ones."""
        return float(self.excess.mean(axis=0).min())

    def predict(self, setting: Setting, values: Sequence[float]) -> tuple[float, Range, Range]:
        """Return the loss of one training, and the intervals that hold it with 68 and 95 %."""
        middle, around = self.outcome(setting, values)
        losses = middle + around * np.random.default_rng(1).standard_normal(len(middle))
        low, lower, loss, higher, high = quantiles(losses)
        return loss, (lower, higher), (low, high)

    def answer(self) -> CampaignAnswer:
        """Return what is believed of the target."""
        values = self.recommended
        intervals = []
        for k, value in enumerate(values):
            low, lower, _, higher, high = quantiles(self.best[:, k])
            likely = (min(lower, value), max(higher, value))
            intervals.append((likely, (min(low, value), max(high, value))))
        loss, likely, sure = self.predict(self.target, values)
        outside = self.caveats(self.target, values, likely[0])
        return CampaignAnswer(values, tuple(intervals), self.regret, loss, likely, sure, outside)

    def caveats(self, setting: Setting, values: Sequence[float], low: float) -> str | None:
        """Return why not to trust a prediction at the best values, ``low`` the lower end of its
        68 %: how far outside it lies, and that a smaller and shorter one already has a lower loss.
        """
        notes = (self.outside(setting, values), self._contradicted(setting, low))
        return " ".join(note for note in notes if note) or None

    def _contradicted(self, target: Setting, loss: float) -> str | None:
        lowest = min(
            (
                one.loss
                for one in self.observations
                if one.setting.non_embedding <= target.non_embedding
                and one.setting.tokens <= target.tokens
                and one.setting != target
                and not one.doubt
            ),
            default=math.inf,
        )
        if lowest >= loss:
            return None
        return (
            f"The law does not fit: a smaller and shorter training has already reached "
            f"{lowest:.4g}, so the loss will be lower than it says, and its rate is less sure."
        )

    def outside(self, setting: Setting, values: Sequence[float]) -> str | None:
        """Return how far a training lies outside of what was measured, as a sentence."""
        if not self.domain:
            return "Nothing was measured."
        parts = []
        for name, value in _sizes(setting, values, self.fields):
            low, high = self.domain[name]
            side, end = ("above", high) if value > high else ("below", low)
            if (factor := max(value / high, low / value)) > 1.001:
                by = amount(float(f"{factor:.3g}"))
                parts.append(f"{name} {by} times {side} the measured {amount(end)}")
        return f"Outside of what was measured: {', '.join(parts)}." if parts else None

    @cached_property
    def residuals(self) -> tuple[float, ...]:
        """How far each is above the law, in standard deviations of the law and one trial."""
        off = []
        for one in self.observations:
            loss, around = self.outcome(one.setting, one.values)
            spread = math.sqrt(float(loss.var() + np.median(around**2)) + one.doubt**2)
            above = (one.loss - float(loss.mean())) / spread
            off.append(above if math.isfinite(above) else math.inf)
        return tuple(off)


@lru_cache(maxsize=64)
def fit_law(
    observations: tuple[Observation, ...],
    fields: tuple[Field, ...],
    target: Setting,
    *,
    published: bool = True,
    others: tuple[Setting, ...] = (),
) -> Law | None:
    """Fit the law of a target; None where none of the prior explains the observations.

    ``published`` runs may count as a weak prior. ``others``: settings of which something is asked.
    """
    losses, kept = _losses(observations, fields, target)
    model = Model(target, fields, losses, published=published)
    draw = np.random.default_rng(0)  # Always the same draws: no answer changes by itself.
    draws = sample(model.prior(_DRAWS, draw), model.log_prior, model.log_likelihood, draw)
    if draws is None:
        return None
    asked = [*(o.setting for o in kept), *(o.setting for o in observations), *others, target]
    rungs = tuple(dict.fromkeys(_rung(setting, fields) for setting in asked))
    middle = [field.low for field in fields]
    of_rungs = _places(fields, target, rungs, [(setting, middle) for setting in rungs])
    draws = model.with_linear(draws, of_rungs, draw)
    sizes: dict[str, list[float]] = defaultdict(list)
    for one in kept:
        for name, value in _sizes(one.setting, one.values, fields):
            sizes[name].append(value)
    domain = {name: (min(values), max(values)) for name, values in sizes.items()}
    return Law(model, draws, fields, target, rungs, observations, domain)


def quantiles(values: Array) -> list[float]:
    """Return the ends of 95 %, of 68 % and the middle, ascending."""
    return [float(each) for each in np.quantile(values, (0.025, 0.16, 0.5, 0.84, 0.975))]


def _losses(
    observations: Sequence[Observation], fields: tuple[Field, ...], target: Setting
) -> tuple[Losses, list[Observation]]:
    """Return means over seeds, and the observations in them: those that did not diverge."""
    rates = [k for k, field in enumerate(fields) if field.role == "rate"]
    rungs: dict[Setting, dict[tuple[float, ...], list[Observation]]] = {}
    for one in observations:
        rungs.setdefault(_rung(one.setting, fields), {}).setdefault(one.values, []).append(one)
    whole: list[list[Observation]] = []
    broken: list[list[Observation]] = []
    for tried in rungs.values():
        finite = [one for seeds in tried.values() for one in seeds if math.isfinite(one.loss)]
        best = min(finite, key=lambda one: one.loss, default=None)
        for seeds in tried.values():
            lost = best is None or not all(
                math.isfinite(one.loss)
                and (
                    one.loss <= _LOST * best.loss
                    or all(one.values[k] <= best.values[k] for k in rates)
                )
                for one in seeds
            )
            (broken if lost else whole).append(seeds)
    losses = [np.array([one.loss for one in seeds]) for seeds in whole]
    kept = [one for seeds in whole for one in seeds]
    order = tuple(dict.fromkeys(_rung(one.setting, fields) for one in (*kept, *observations)))
    places, walls = (
        _places(fields, target, order, [(seeds[0].setting, seeds[0].values) for seeds in groups])
        for groups in (whole, broken)
    )
    measured = Losses(
        places,
        np.array([seeds.mean() for seeds in losses]),
        np.array([float(len(seeds)) for seeds in losses]),
        np.array([seeds.var() * len(seeds) for seeds in losses]),
        np.array([sum(one.doubt**2 for one in seeds) / len(seeds) ** 2 for seeds in whole]),
        walls,
    )
    return measured, kept


def _places(
    fields: tuple[Field, ...],
    target: Setting,
    rungs: tuple[Setting, ...],
    trials: Sequence[tuple[Setting, Sequence[float]]],
) -> Coordinates:
    values = np.array([row for _, row in trials], dtype=float).reshape(len(trials), len(fields))
    batch = np.array([setting.batch for setting, _ in trials], dtype=float)
    rate, others = np.zeros(len(trials)), np.empty((len(trials), 0))
    for field, column in zip(fields, values.T, strict=True):
        if field.role == "batch":
            batch = column
        elif field.role == "rate":
            rate = np.log2(column)
        else:
            others = np.c_[others, scaled(field, column)]
    sizes: tuple[Quantity, ...] = ("width", "depth", "non_embedding", "tokens")
    over = np.log2([[target.ratio(setting, name) for setting, _ in trials] for name in sizes])
    width, depth, size, length = over
    batch = np.log2(batch / batch_middle(fields, target))
    rung = np.array([rungs.index(_rung(setting, fields)) for setting, _ in trials], dtype=np.intp)
    return Coordinates(width, depth, size, length, batch, rate, others, rung)


def _rung(setting: Setting, fields: tuple[Field, ...]) -> Setting:
    """Return a setting without its batch where each trial has its own."""
    return replace(setting, batch=0) if any(field.role == "batch" for field in fields) else setting


def _sizes(
    setting: Setting, values: Sequence[float], fields: tuple[Field, ...]
) -> Iterator[tuple[str, float]]:
    batches = [v for field, v in zip(fields, values, strict=True) if field.role == "batch"]
    yield "parameters", setting.non_embedding
    yield "tokens", setting.tokens
    yield "width", setting.width
    yield "depth", setting.depth
    yield "batch", batches[0] if batches else setting.batch


def scaled(field: Field, values: Array | float) -> Array:
    """Return values as shares of the field's range, from -2 to 2."""
    low, high = (math.log(v) if field.log else v for v in (field.low, field.high))
    return np.asarray(4 * ((np.log(values) if field.log else values) - low) / (high - low) - 2)


def _value(field: Field, shares: Array | float) -> Array:
    """Return the values of shares of the field's range."""
    low, high = (math.log(v) if field.log else v for v in (field.low, field.high))
    values = low + (high - low) * (np.asarray(shares) + 2) / 4
    return np.asarray(np.exp(values) if field.log else values)
