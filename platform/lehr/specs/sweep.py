"""The spec of a sweep: many runs that differ in a few values.

The keys are those of a W&B sweep file (``method``, ``metric``, ``parameters``). ``run`` is the spec
that every trial starts from.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator, Mapping
from typing import Annotated, Any, Literal

from pydantic import BeforeValidator, Discriminator, Field, Tag, model_validator

from lehr.base.names import PROGRAM_SEED, SEED, Goal, goal_of, seed_path
from lehr.specs.campaign import Campaign
from lehr.specs.overrides import name_the_run, numbered
from lehr.specs.run import LONGEST_NOTE, Name, RunSpec
from lehr.specs.search import Pruning, Range, Space, random_points
from lehr_trainer.configs.base import Config, OrNone

_LEAF_KEYS = frozenset(
    {"values", "value", "min", "max", "distribution", "mu", "sigma", "q", "probabilities"}
)
"""Keys of a W&B parameter. A mapping with one of them is a parameter, otherwise a group."""


class Metric(Config):
    name: str = "val/loss"
    """Metric that ranks the trials."""
    goal: Goal = "minimize"
    """Whether lower or higher is better. By default that of the name: an accuracy is maximized."""

    @model_validator(mode="before")
    @classmethod
    def _goal_of_the_name(cls, data: Any) -> Any:
        named = isinstance(data, dict) and "name" in data
        return {"goal": goal_of(str(data["name"])) or "minimize", **data} if named else data


class Values(Config):
    """A list of values for a parameter."""

    values: Annotated[list[Any], Field(min_length=1)]
    """One trial for each value (a row of the grid)."""


def _kind_of_parameter(raw: Any) -> str:
    if isinstance(raw, Range):
        return "Range"
    ranged = isinstance(raw, dict) and "values" not in raw and bool(_LEAF_KEYS & raw.keys())
    return "Range" if ranged else "Values"


Parameter = Annotated[
    Annotated[Values, Tag("Values")] | Annotated[Range, Tag("Range")],
    Discriminator(_kind_of_parameter),
]

STARTUP_TRIALS = 10
"""TPE draws its first trials at random and starts them together."""


def flatten_parameters(raw: Any) -> Any:
    """Return the parameters by dotted path, however they are nested.

    ``{train: {optimizer: {lr: {values: [...]}}}}``, W&B's own nesting with ``parameters`` at each
    level, and ``{value: x}`` for a constant become ``{train.optimizer.lr: {values: ...}}``.
    """
    if not isinstance(raw, dict):
        return raw
    found: dict[str, Any] = {}
    _flatten(raw, "", found)
    return found


def _flatten(raw: dict[Any, Any], prefix: str, found: dict[str, Any]) -> None:
    for key, value in raw.items():
        path = f"{prefix}.{key}" if prefix else str(key)
        if isinstance(value, dict) and value and not _LEAF_KEYS & value.keys():
            group = value["parameters"] if set(value) == {"parameters"} else value
            if isinstance(group, dict):
                _flatten(group, path, found)
                continue
        if path in found:
            raise ValueError(f"{path} is given twice")
        constant = isinstance(value, dict) and set(value) == {"value"}
        found[path] = {"values": [value["value"]]} if constant else value


class SweepSpec(Config):
    kind: Literal["sweep"] = "sweep"
    name: Name
    """Name of the sweep. Its runs are ``<name>-1``, ``<name>-2``, ..."""
    project: Name = "default"
    """Project of the sweep and its runs."""
    tags: list[str] = []
    """Tags of the sweep and its runs."""
    notes: Annotated[str, Field(max_length=LONGEST_NOTE)] = ""
    """Notes in free text."""
    method: Literal["grid", "list", "random", "tpe", "campaign"] = "grid"
    """grid: every combination of the values; list: exactly ``points``; random: ``trials`` random
    points; tpe: ``trials`` points, chosen near those with good results (Bergstra et al. 2011).
    """
    metric: Metric = Metric()
    parameters: Annotated[dict[str, Parameter], BeforeValidator(flatten_parameters)] = {}
    """By dotted path into ``run``, e.g. ``train.optimizer.lr``: values, or a range (min, max)."""
    points: list[dict[str, Any]] | None = None
    """For method list: the points, each with its values by dotted path."""
    trials: Annotated[int, Field(ge=1)] | None = None
    """For methods random and tpe: number of points to try."""
    seed: Annotated[int, Field(ge=0, lt=2**31)] = 0
    """Seed of random and tpe."""
    seeds: Annotated[list[Annotated[int, Field(ge=0)]], Field(min_length=1)] | None = None
    """Each point runs once with each of these as train.seed, or as the seed among the
    arguments of a program. Shows the noise between seeds.
    """
    budget: Literal["equal", "any"] = "equal"
    """equal: trials must train on the same number of tokens, else the sweep is rejected; any:
    they may differ.
    """
    # Left out where it is the default, so that sweeps of earlier versions stay the same.
    share_stages: Annotated[bool, Field(exclude_if=bool)] = True
    """Train the stages before the first swept one once, and start each trial from there."""
    run: RunSpec
    """The spec that every trial starts from. It takes name and project from the sweep."""
    max_concurrent: Annotated[int, Field(ge=1)] | None = None
    """Runs of this sweep at the same time. None: no limit but the queue's."""
    max_failed: Annotated[int, Field(ge=0)] | None = None
    """After more failed trials than this, no more are started."""
    pruning: Pruning | None = None
    """Rule for ending trials early. None: every trial trains to its end."""
    campaign: OrNone[Campaign] = None
    """For method campaign: its budget, what it decides and its rungs, resolved."""

    _named = model_validator(mode="before")(name_the_run)

    @property
    def seed_path(self) -> str:
        """Return the path of the seed: ``train.seed``, or an argument of a program."""
        program = self.run.trainer
        return SEED if program is None else seed_path(program.args) or PROGRAM_SEED

    @property
    def point_count(self) -> int:
        """Return the number of points, including those that TPE has yet to choose."""
        if self.method == "list":
            return len(self.points or [])
        if self.method == "grid":
            values = self.parameters.values()
            return math.prod(len(p.values) for p in values if isinstance(p, Values))
        return self.trials or 0

    @property
    def seed_count(self) -> int:
        return len(self.seeds or [None])

    def of_rung(self, parameters: Mapping[str, Any]) -> dict[str, Any]:
        """Return what the rung of a trial of a campaign sets beside its parameters."""
        rungs = self.campaign.rungs if self.campaign is not None else []
        return next((rung.set for rung in rungs if rung.point.items() <= parameters.items()), {})

    def rung_points(self) -> list[dict[str, Any]]:
        """Return a point for each rung of a campaign, with the target's values; else none."""
        if self.campaign is None:
            return []
        decide, rungs = self.campaign.decide.items(), self.campaign.rungs
        return [{**{path: rung.start(one) for path, one in decide}, **rung.point} for rung in rungs]

    @property
    def trial_count(self) -> int:
        return self.point_count * self.seed_count

    @property
    def space(self) -> Space:
        return {
            path: parameter if isinstance(parameter, Range) else parameter.values
            for path, parameter in self.parameters.items()
        }

    @property
    def paths(self) -> list[str]:
        points = [*(self.points or []), *self.rung_points()]
        found = [*self.parameters, *(path for point in points for path in point)]
        return list(dict.fromkeys([*found, *([self.seed_path] if self.seeds else [])]))

    def spec_path(self, path: str) -> str:
        """Return a path of its parameters with the number of the stage that it names.

        Raises:
            ValueError: ``run`` has no such stage.
        """
        return numbered(self.run.model_dump(include={"train": {"stages"}}), path)

    def all_points(self) -> Iterator[dict[str, Any]]:
        """Return the first trials' parameter values in order: all trials, except with TPE.

        In a grid the last parameter varies fastest; seeds vary faster still.
        """
        for point in self._points():
            yield from self.seeded(point)

    def seeded(self, point: dict[str, Any]) -> list[dict[str, Any]]:
        """Return the trials of one point: one per seed."""
        if self.seeds is None:
            return [point]
        return [{**point, self.seed_path: seed} for seed in self.seeds]

    def _points(self) -> Iterator[dict[str, Any]]:
        if self.method == "list":
            yield from (dict(point) for point in self.points or [])
        elif self.method == "grid":
            values = [p.values for p in self.parameters.values() if isinstance(p, Values)]
            for combination in itertools.product(*values):
                yield dict(zip(self.parameters, combination, strict=True))
        else:
            trials = self.trials or 0
            count = min(trials, STARTUP_TRIALS) if self.method == "tpe" else trials
            yield from itertools.islice(random_points(self.space, self.seed), count)
