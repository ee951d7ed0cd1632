"""The trials of a sweep: each of its points as a validated run."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from pydantic import ValidationError

from lehr.errors import SpecError, SpecProblem
from lehr.specs.course import share_problem
from lehr.specs.methods import budget_problems, method_problems, metric_problems, pruning_problems
from lehr.specs.overrides import replace_length, with_changes
from lehr.specs.problems import Origin, show, the_cause, translate
from lehr.specs.run import RunSpec
from lehr.specs.search import Range, point_key
from lehr.specs.sweep import SweepSpec, Values
from lehr.specs.synonyms import nearest_path
from lehr.specs.yaml12 import YamlDocument
from lehr_trainer.configs.fields import place

MAX_TRIALS = 10_000
TrialSpec = tuple[dict[str, Any], RunSpec]
"""The values of a point, and the spec of its run."""
_NOT_SWEPT = {
    "kind": "it is the type of the spec",
    "name": "each trial is named after the sweep",
    "project": "a sweep belongs to one project",
}


@dataclass(frozen=True)
class _Trial:
    number: int
    """Counts from 1, in the sweep's order."""
    parameters: dict[str, Any]
    data: dict[str, Any]


def expand(sweep: SweepSpec) -> list[TrialSpec]:
    """Return each trial's parameter values and run, named ``<sweep>-<n>`` from 1.

    For TPE: only the first trials, which do not depend on results.

    Raises:
        SpecError: a path is not in the spec, a value does not fit, or two trials are equal.
    """
    problems, trials = check_trials(sweep, Origin(YamlDocument(data=None)))
    if problems:
        raise SpecError(problems)
    return trials


def trials_at(
    sweep: SweepSpec, points: Sequence[dict[str, Any]], *, first: int = 1, **changes: Any
) -> list[TrialSpec]:
    """Return the trials of these points, their runs numbered from ``first``.

    ``changes``: fields of their runs, such as ``notes``, in place of those of the sweep's.

    Raises:
        SpecError: a value does not fit with the others of its point.
    """
    found = []
    for trial in _trials(sweep, points, first):
        try:
            run = RunSpec.model_validate({**trial.data, **changes})
            found.append((trial.parameters, run))
        except ValidationError as error:
            problems = _in_trial(error, trial, sweep, Origin(YamlDocument(data=None)))
            raise SpecError(list(dict.fromkeys(problems))) from None
    if unlike := share_problem(sweep, (run for _, run in found)):
        raise SpecError([SpecProblem("share_stages", *unlike)])
    return found


def value_trials(sweep: SweepSpec) -> list[TrialSpec]:
    """Return one trial for each value of each parameter that TPE may choose later, for the checks.

    The later trials are added without checks. Values of the others are those of the first trial. Of
    a range, both ends. Of a campaign, one for each rung. Empty for other methods: all their trials
    are known.

    Raises:
        SpecError: a value does not fit.
    """
    if sweep.campaign is not None:
        return trials_at(sweep, sweep.rung_points())
    if sweep.method != "tpe":
        return []
    return trials_at(sweep, list(_single_values(sweep, list(sweep.all_points()))))


def check_trials(sweep: SweepSpec, origin: Origin) -> tuple[list[SpecProblem], list[TrialSpec]]:
    """Return the problems of a sweep's parameters, each once, with the value that causes it.

    If there are none, return the trials as ``expand`` does: a sweep may have thousands, and reading
    each takes as long as checking it.
    """
    problems = [
        *_path_problems(sweep, origin),
        *method_problems(sweep, origin),
        *metric_problems(sweep, origin),
    ]
    if problems:
        return problems, []
    count = sweep.trial_count
    if count > MAX_TRIALS:
        message = f"the parameters make {count:,} trials; at most {MAX_TRIALS:,}."
        at = "parameters" if sweep.parameters else "points"
        return [origin.problem(at, message)], []
    problems = _repeated_values(sweep, origin)
    seen: dict[str, _Trial] = {}
    """The trials so far by their whole run, besides its name."""
    made: list[TrialSpec] = []
    points = list(sweep.all_points())
    for trial in _trials(sweep, points):
        try:
            run = RunSpec.model_validate(trial.data)
        except ValidationError as error:
            problems += _in_trial(error, trial, sweep, origin)
            continue
        made.append((trial.parameters, run))
        first = seen.setdefault(run.model_dump_json(exclude={"name"}), trial)
        if first is not trial and not problems:
            problems.append(
                origin.problem(
                    "parameters" if sweep.parameters else _point_at(trial, sweep),
                    f"trials {first.number} and {trial.number} are the same run: "
                    f"{_point(first.parameters)} and {_point(trial.parameters)}.",
                )
            )
    later: list[RunSpec] = []
    for trial in _trials(sweep, [*_single_values(sweep, points), *sweep.rung_points()]):
        try:
            later.append(RunSpec.model_validate(trial.data))
        except ValidationError as error:
            problems += _in_trial(error, trial, sweep, origin)
    if not problems:
        problems += budget_problems(sweep, made, origin)
        known = made or [
            (point, run) for point, run in zip(sweep.rung_points(), later, strict=True)
        ]
        problems += pruning_problems(sweep, [run.steps for _, run in known], origin)
        if unlike := share_problem(sweep, [*(run for _, run in made), *later]):
            problems.append(origin.problem("share_stages", *unlike))
    return list(dict.fromkeys(problems)), made


def _single_values(sweep: SweepSpec, points: Sequence[dict[str, Any]]) -> Iterator[dict[str, Any]]:
    """Return the first point with each single value that is not drawn now but may be drawn later:
    both ends of each range, and for TPE each value of a list.
    """
    for path, parameter in sweep.parameters.items():
        if isinstance(parameter, Range):
            values = [parameter.at(share) for share in (0.0, 1.0)]
        else:
            values = parameter.values if sweep.method == "tpe" else []
        for value in values:
            yield {**points[0], path: value}


def _trials(sweep: SweepSpec, points: Iterable[dict[str, Any]], first: int = 1) -> Iterator[_Trial]:
    # As written, without defaults: another member of a union may lack these fields.
    base = sweep.run.model_dump(mode="json", exclude_unset=True)
    base["project"] = sweep.project
    base["tags"] = list(dict.fromkeys([*sweep.tags, *sweep.run.tags]))
    replace_length(base, sweep.paths)
    # Several times faster than deepcopy, and a sweep may have 10,000 trials.
    text = json.dumps(base)
    for number, parameters in enumerate(points, start=first):
        data = with_changes(json.loads(text), {**sweep.of_rung(parameters), **parameters})
        data["name"] = f"{sweep.name}-{number}"
        yield _Trial(number, parameters, data)


def _path_problems(sweep: SweepSpec, origin: Origin) -> Iterator[SpecProblem]:
    points = [(f"points.{index}", listed) for index, listed in enumerate(sweep.points or [])]
    for prefix, paths in [("parameters", sweep.parameters), *points]:
        known: dict[str, str] = {}
        for path in paths:
            try:
                number = sweep.spec_path(path)
            except ValueError as error:
                yield origin.problem(f"{prefix}.{path}", f"{error}.", at_key=True)
                continue
            if known.setdefault(number, path) != path:
                message = f"{path} and {known[number]} are the same field; give one of them."
                yield origin.problem(f"{prefix}.{path}", message, at_key=True)
            yield from _path_problem(number, f"{prefix}.{path}", origin)


def _path_problem(path: str, at: str, origin: Origin) -> Iterator[SpecProblem]:
    if path in _NOT_SWEPT:
        yield origin.problem(at, f"{path} cannot be swept: {_NOT_SWEPT[path]}.", at_key=True)
    elif path.endswith("model.preset"):
        yield origin.problem(
            at,
            f"{path} cannot be swept: a preset is the whole model.",
            "Sweep train.model, with the presets' names as values.",
            at_key=True,
        )
    elif place(RunSpec, path) is None:
        begin = "train, resources, retries, priority, time_limit_s, env or tracking"
        yield unknown_path(path, at, origin, begin)


def unknown_path(path: str, at: str, origin: Origin, begin: str) -> SpecProblem:
    """Return the problem of a path, written at ``at``, that no run has; others ``begin`` with."""
    near = nearest_path(RunSpec, path.removeprefix("run."))
    hint = f"Did you mean {near}?" if near else f"Paths begin with {begin}."
    return origin.problem(at, f"{path} is not in the spec of a run.", hint, at_key=True)


def _repeated_values(sweep: SweepSpec, origin: Origin) -> list[SpecProblem]:
    lists = {
        f"parameters.{path}.values": parameter.values
        for path, parameter in sweep.parameters.items()
        if isinstance(parameter, Values)
    }
    lists["seeds"] = sweep.seeds or []
    problems: list[SpecProblem] = []
    for at, values in lists.items():
        seen: set[str] = set()
        for index, value in enumerate(values):
            key = point_key({at: value})
            if key in seen:
                problems.append(origin.problem(f"{at}.{index}", f"{at} has {show(value)} twice."))
            seen.add(key)
    return problems


def _in_trial(
    error: ValidationError, trial: _Trial, sweep: SweepSpec, origin: Origin
) -> Iterator[SpecProblem]:
    """Place a trial's problems at the values that caused them."""
    paths = {sweep.spec_path(path): path for path in trial.parameters}
    for problem in translate(error, RunSpec, Origin(YamlDocument(data=None))):
        blamed = the_cause(problem.path, paths)
        if blamed is not None:
            at = _place_of(paths[blamed], trial, sweep)
            yield origin.problem(at, problem.message, problem.hint)
        else:
            at = _point_at(trial, sweep) if sweep.method == "list" else "parameters"
            yield origin.problem(at, f"{_point(trial.parameters)}: {problem.message}", problem.hint)


def _place_of(path: str, trial: _Trial, sweep: SweepSpec) -> str:
    value = trial.parameters[path]
    parameter = sweep.parameters.get(path)
    if isinstance(parameter, Values):
        return f"parameters.{path}.values.{parameter.values.index(value)}"
    if isinstance(parameter, Range):
        return f"parameters.{path}"
    if path == sweep.seed_path and sweep.seeds is not None:
        return f"seeds.{sweep.seeds.index(value)}"
    return f"{_point_at(trial, sweep)}.{path}"


def _point_at(trial: _Trial, sweep: SweepSpec) -> str:
    return f"points.{(trial.number - 1) // sweep.seed_count}"


def _point(parameters: dict[str, Any]) -> str:
    return ", ".join(f"{path}={show(value)}" for path, value in parameters.items())
