"""Ranges for random search and TPE, and pruning rules.

The keys of a range are W&B's: ``min``, ``max``, ``distribution``.
"""

from __future__ import annotations

import itertools
import json
import math
import random
from collections.abc import Iterator, Mapping, Sequence
from typing import Annotated, Any, ClassVar, Literal, Self

from pydantic import Field, model_validator

from lehr_trainer.configs.base import Config, PositiveInt


class Range(Config):
    """A parameter with any value between two bounds."""

    min: float
    """Lower bound, included."""
    max: float
    """Upper bound, included."""
    distribution: Literal[
        "uniform", "log_uniform_values", "int_uniform", "q_uniform", "q_log_uniform_values"
    ] = "uniform"
    """Distribution of random values: uniform, or uniform in the logarithm (for a learning rate)."""
    q: Annotated[float, Field(gt=0)] | None = None
    """Step of the q_ distributions: values are rounded to multiples of it."""

    @model_validator(mode="after")
    def _ordered(self) -> Self:
        if not self.min < self.max:
            raise ValueError(f"min {self.min:g} is not below max {self.max:g}")
        if "log" in self.distribution and self.min <= 0:
            raise ValueError(f"min {self.min:g} has no logarithm; it must be above 0")
        if self.distribution == "int_uniform" and not (
            self.min.is_integer() and self.max.is_integer()
        ):
            raise ValueError(
                f"min is {self.min:g} and max is {self.max:g}; int_uniform needs whole numbers"
            )
        if (self.q is not None) != self.distribution.startswith("q_"):
            raise ValueError(
                f"distribution {self.distribution} needs q, the step of its values"
                if self.q is None
                else f"q is {self.q:g}, but distribution {self.distribution} takes no q; only "
                "q_uniform and q_log_uniform_values take it"
            )
        return self

    def at(self, share: float) -> float | int:
        """Return the value at a position in the range, from 0 (``min``) to 1 (``max``)."""
        if self.distribution == "int_uniform":
            low, high = int(self.min), int(self.max)
            return min(low + int(share * (high - low + 1)), high)
        if "log" in self.distribution:
            first, last = math.log(self.min), math.log(self.max)
            value = math.exp(first + share * (last - first))
        else:
            value = self.min + share * (self.max - self.min)
        return self.rounded(value)

    def rounded(self, value: float) -> float:
        """Round to a multiple of ``q`` if set, and clamp to the bounds."""
        if self.q is not None:
            value = round(value / self.q) * self.q
        return min(max(value, self.min), self.max)


class BasePruning(Config):
    """What a sweep needs of every pruning rule, besides its settings."""

    needs_length: ClassVar[bool] = False
    """Whether it needs the number of steps of a trial."""

    @property
    def rung_factor(self) -> int | None:
        """How many times as far each rung is; None if it acts at every report."""
        return None


class _Halving(BasePruning):
    """A rule that acts at rungs, each ``reduction`` times as far as the one before."""

    name: str
    min_steps: int
    reduction: int

    @property
    def rung_factor(self) -> int:
        return self.reduction

    @property
    def pruned_for(self) -> str:
        """Complete the reason "5.2 at step 100 is ..." of a trial that it prunes."""
        return f"not among the best 1/{self.reduction} at this rung"


class AshaPruning(_Halving):
    """Asynchronous successive halving (Li et al. 2020, arXiv:1810.05934): at each rung a trial
    continues only while it is in the best 1/``reduction`` of those that reached the rung.
    """

    name: Literal["asha"]
    min_steps: PositiveInt
    """First rung, in optimizer steps. Each further rung is ``reduction`` times as far."""
    reduction: Annotated[int, Field(ge=2)] = 4
    """At each rung the best 1/``reduction`` of the trials continue; the next rung is that many
    times as far.
    """


class MedianPruning(BasePruning):
    """Median stopping: a trial ends when its best value is worse than the median of the other
    trials at the same step (Golovin et al. 2017, Google Vizier).
    """

    name: Literal["median"]
    startup_trials: Annotated[int, Field(ge=0)] = 4
    """Number of trials that must complete before pruning starts."""
    min_steps: Annotated[int, Field(ge=0)] = 0
    """Optimizer steps before which no trial is pruned."""

    @property
    def pruned_for(self) -> str:
        return "worse than the median trial"


class HyperbandPruning(_Halving):
    """Several ASHA brackets with different first rungs (Li et al. 2018, arXiv:1603.06560)."""

    name: Literal["hyperband"]
    min_steps: PositiveInt
    """First rung of the shortest bracket, in optimizer steps."""
    reduction: Annotated[int, Field(ge=2)] = 3
    """At each rung the best 1/``reduction`` of the trials continue; the next rung is that many
    times as far.
    """

    needs_length: ClassVar[bool] = True


class ForecastPruning(BasePruning):
    """A trial ends when its loss at its own end will be worse than another trial's, with 99 %: by
    the forecasts of both, which know their learning-rate schedules.
    """

    name: Literal["forecast"]
    min_steps: Annotated[int, Field(ge=0)] = 0
    """Optimizer steps before which no trial is pruned."""

    needs_length: ClassVar[bool] = True
    pruned_for: ClassVar[str] = "of a trial that ends worse than another one, with 99 %"


Pruning = Annotated[
    AshaPruning | MedianPruning | HyperbandPruning | ForecastPruning, Field(discriminator="name")
]


Space = Mapping[str, Range | Sequence[Any]]
"""By dotted path: a range, or a list of values."""

_COUNTED = 100_000
"""Spaces up to this size are shuffled, so no point is drawn twice."""
_LIMIT = 1_000
"""Draws in a row without a new point before a space counts as exhausted."""


def size(space: Space) -> int | None:
    """Return the number of different points; None if it is not finite."""
    total = 1
    for choice in space.values():
        if not isinstance(choice, Range):
            total *= len(choice)
        elif choice.distribution == "int_uniform":
            total *= int(choice.max) - int(choice.min) + 1
        else:
            return None
    return total


def random_points(space: Space, seed: int) -> Iterator[dict[str, Any]]:
    """Draw different points at random. The same seed gives the same points, however many are
    drawn. Ends when the space is exhausted.
    """
    count = size(space)
    if count is not None and count <= _COUNTED:
        choices = [_values(choice) for choice in space.values()]
        every = [dict(zip(space, values, strict=True)) for values in itertools.product(*choices)]
        random.Random(seed).shuffle(every)  # noqa: S311 - a search, not a secret
        yield from every
        return
    seen: set[str] = set()
    fruitless = 0
    for number in itertools.count(1):
        draw = random.Random(f"{seed}/{number}")  # noqa: S311 - a search, not a secret
        point = {
            path: choice.at(draw.random())
            if isinstance(choice, Range)
            else choice[draw.randrange(len(choice))]
            for path, choice in space.items()
        }
        key = point_key(point)
        fruitless = fruitless + 1 if key in seen else 0
        if fruitless > _LIMIT:
            return
        if key not in seen:
            seen.add(key)
            yield point


def point_key(parameters: Mapping[str, Any]) -> str:
    """Return a key that is equal for equal points; 1 and 1.0 are one value."""
    return json.dumps(
        {path: _plain(value) for path, value in parameters.items()}, sort_keys=True, default=repr
    )


def _plain(value: Any) -> Any:
    number = isinstance(value, int | float) and not isinstance(value, bool)
    return float(value) if number else value


def _values(choice: Range | Sequence[Any]) -> Sequence[Any]:
    if isinstance(choice, Range):
        return range(int(choice.min), int(choice.max) + 1)
    return choice
