"""Check the fields of each sweep method: required, unusable, contradictory."""

from __future__ import annotations

import itertools
from collections.abc import Iterator

from lehr.errors import SpecProblem
from lehr.specs.problems import Origin
from lehr.specs.search import Range, random_points, size
from lehr.specs.sweep import SEED, SweepSpec

_SEARCHES = frozenset({"random", "tpe"})


def method_problems(sweep: SweepSpec, origin: Origin) -> list[SpecProblem]:
    """Return problems with fields that the method lacks or cannot use, or that contradict each
    other.
    """
    found = [*_points(sweep, origin), *_trials(sweep, origin)]
    if sweep.seeds is not None and SEED in [*sweep.parameters, *_listed_paths(sweep)]:
        message = f"seeds and {SEED} both set the seed of a trial; give one of them."
        found.append(origin.problem("seeds", message, at_key=True))
    rule = sweep.pruning
    steps = sweep.run.train.steps
    fixed = "train.steps" not in [*sweep.parameters, *_listed_paths(sweep)]
    if rule is not None and fixed and rule.min_steps >= steps:
        first = "first prunes" if rule.rung_factor is None else "has its first rung"
        message = f"pruning.min_steps is {rule.min_steps}: {rule.name} {first} there, and"
        found.append(
            origin.problem("pruning.min_steps", f"{message} a trial ends at step {steps}.")
        )
    return found


def _listed_paths(sweep: SweepSpec) -> list[str]:
    return [path for point in sweep.points or [] for path in point]


def _points(sweep: SweepSpec, origin: Origin) -> Iterator[SpecProblem]:
    given = sweep.model_fields_set
    if sweep.method == "list":
        if sweep.parameters:
            yield origin.problem(
                "parameters", "parameters cannot be used with method list: it uses points."
            )
        if sweep.points is None:
            hint = "Write each point as a mapping: points: [{train.optimizer.lr: 1e-3}]"
            yield origin.problem("points", "points is missing.", hint)
        elif not sweep.points:
            yield origin.problem("points", "points is empty; give at least 1 value.")
        return
    if sweep.points is not None:
        yield origin.problem(
            "points", f"points goes with method list; the method is {sweep.method}.", at_key=True
        )
    if not sweep.parameters:
        what = "empty; give at least 1 value" if "parameters" in given else "missing"
        hint = "By dotted path into run, e.g. train.optimizer.lr: {values: [1e-4, 1e-3]}"
        yield origin.problem("parameters", f"parameters is {what}.", hint)
    if sweep.method == "grid":
        for path, parameter in sweep.parameters.items():
            if isinstance(parameter, Range):
                yield origin.problem(
                    f"parameters.{path}",
                    f"parameters.{path} is a range; a grid needs values: [...].",
                    "Ranges go with method: random or tpe.",
                )


def _trials(sweep: SweepSpec, origin: Origin) -> Iterator[SpecProblem]:
    if sweep.method not in _SEARCHES:
        if sweep.trials is not None:
            yield origin.problem(
                "trials",
                f"trials goes with method random or tpe; the method is {sweep.method}.",
                at_key=True,
            )
        return
    if sweep.trials is None:
        yield origin.problem(
            "trials", "trials is missing.", f"The number of points for {sweep.method} to try."
        )
    elif sweep.parameters:
        count = size(sweep.space)
        if count is None and sweep.trials <= 10_000:
            drawn = itertools.islice(random_points(sweep.space, sweep.seed), sweep.trials)
            found = sum(1 for _ in drawn)
            count = found if found < sweep.trials else None
        if count is not None and sweep.trials > count:
            yield origin.problem(
                "trials", f"trials is {sweep.trials}; the parameters have only {count} points."
            )
