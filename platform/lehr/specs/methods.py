"""Check a sweep: the fields of each method, a metric that trials log, equal numbers of tokens."""

from __future__ import annotations

import itertools
import re
from collections.abc import Collection, Iterable, Iterator
from typing import Any

from lehr.errors import SpecProblem, nearest
from lehr.specs.overrides import LENGTHS
from lehr.specs.problems import Origin, show
from lehr.specs.run import RunSpec
from lehr.specs.search import Range, random_points, size
from lehr.specs.sweep import SweepSpec
from lehr_trainer.configs.tasks import METRIC
from lehr_trainer.configs.train import TrainConfig

_SEARCHES = frozenset({"random", "tpe"})


def method_problems(sweep: SweepSpec, origin: Origin) -> list[SpecProblem]:
    """Return problems with fields that the method lacks or cannot use, or that contradict each
    other.
    """
    found = [*_points(sweep, origin), *_trials(sweep, origin)]
    if sweep.seeds is not None and sweep.seed_path in [*sweep.parameters, *_listed_paths(sweep)]:
        message = f"seeds and {sweep.seed_path} both set the seed of a trial; give one of them."
        found.append(origin.problem("seeds", message, at_key=True))
    if not _lengths_vary(sweep):
        found += pruning_problems(sweep, [sweep.run.steps], origin)
    return found


def pruning_problems(
    sweep: SweepSpec, lengths: Collection[int | None], origin: Origin
) -> Iterator[SpecProblem]:
    """Reject a rule that begins after every trial has ended, and one that needs their length.

    ``lengths``: the steps of the trials; None where only the program determines them.
    """
    rule = sweep.pruning
    steps = [length for length in lengths if length is not None]
    if rule is None:
        return
    name, goal = sweep.metric.name, sweep.metric.goal
    is_loss = name.endswith(("loss", "bits_per_byte")) or sweep.run.trainer is not None
    if rule.name == "forecast" and not (is_loss and goal == "minimize"):
        message = f"pruning.name is forecast, which needs a loss to minimize, not {name}, {goal}."
        yield origin.problem("pruning.name", message, "Give metric.name: val/loss, or use asha.")
    if len(steps) < len(lengths):
        if rule.needs_length:
            yield origin.problem(
                "pruning.name",
                f"pruning.name is {rule.name}, which needs the number of steps of each trial; "
                "neither run.trainer.steps nor run.trainer.steps_arg is given.",
                "Give one of them, or use asha or median.",
            )
        return
    if rule.min_steps < max(steps):
        return
    first = "first prunes" if rule.rung_factor is None else "has its first rung"
    end = "a trial ends" if len(set(steps)) == 1 else "the longest trial ends"
    message = f"pruning.min_steps is {rule.min_steps}: {rule.name} {first} there, and"
    yield origin.problem("pruning.min_steps", f"{message} {end} at step {max(steps)}.")


def _lengths_vary(sweep: SweepSpec) -> bool:
    """Return whether trials may take different numbers of steps."""
    paths = [*sweep.parameters, *_listed_paths(sweep)]
    program = sweep.run.trainer
    if program is not None:
        lengths = {"trainer.steps", f"trainer.args.{program.steps_arg}"}
        return any(path in lengths for path in paths)
    train = sweep.run.own
    follow = [*LENGTHS, "train.stages"]  # What the steps of a trial follow from.
    if train.has_budget:
        follow.append("train.batch")
    if train.tokens_per_parameter is not None:
        follow.append("train.model")
    return any(path == one or path.startswith(f"{one}.") for path in paths for one in follow)


def _listed_paths(sweep: SweepSpec) -> list[str]:
    return [path for point in sweep.points or [] for path in point]


def _points(sweep: SweepSpec, origin: Origin) -> Iterator[SpecProblem]:
    given = sweep.model_fields_set
    if "campaign" in (sweep.method, sweep.campaign and "campaign"):
        if not sweep.campaign or sweep.method != "campaign" or sweep.parameters or sweep.points:
            message = "a campaign has method campaign, no parameters and no points."
            yield origin.problem("method", message, "Write a file of kind campaign.")
        return
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


METRICS = (
    "val/loss", "val/bits_per_byte", "train/loss", "train/lr", "train/grad_norm",
    "train/loss_tokens", "train/z_loss",
    "train/skipped_steps", "train/loss_scale", "train/compression_overflows", "tokens_per_s",
    "step_time_s", "data_wait_s", "mfu", "memory/allocated_bytes", "memory/peak_bytes",
    "memory/reserved_bytes", "memory/rss_bytes", "raw_ce_fp32", "loss_same_tokens", "top1_acc",
)  # fmt: skip
"""Metrics with fixed names; ``params/`` has one for each part of the model, ``val/loss/`` one
for each source of a corpus or part of a mix, ``task/`` several for each of ``train.evals``.
``val/average/`` and ``task/average/`` have those of an average of the weights (``train.average``).
"""
_PARTS = re.compile(r"params/[A-Za-z0-9_.]+/(norm|grad_norm|update_ratio)|val/loss/.+")

_TASK = re.compile(METRIC)


def metric_problems(sweep: SweepSpec, origin: Origin) -> Iterator[SpecProblem]:
    """Reject a metric that no run logs. Without this check the sweep would rank nothing at its
    end.
    """
    name = sweep.metric.name
    if sweep.run.trainer is not None:
        return  # A program logs what it likes.
    of_average = name.startswith("val/average/")
    averaged = of_average and sweep.run.own.average is not None
    of_stages = {f"val/{span.name}/loss" for span in sweep.run.own.spans if span.name}
    if averaged or name in METRICS or name in of_stages or _PARTS.fullmatch(name):
        return
    names = {task.name: task.where for task in sweep.run.own.evals}
    task = _TASK.fullmatch(name)
    of_average |= task is not None and task[1] is not None
    asked = names if task and task[2] == "mean" else names.keys() & {task and task[3]}
    if task and asked and (not of_average or sweep.run.own.average is not None):
        yield from _beside_problems(sweep, {names[one] for one in asked}, origin)
        return
    near = nearest(name.replace("_", "/", 1), METRICS) or nearest(name, METRICS)
    hint = f"Did you mean {near}?   " if near else ""
    if name.startswith("task/"):
        shown = ", ".join(f"task/{one}/accuracy" for one in sorted(names))
        hint = f"Its tasks have {shown}, task/mean.   " if names else "It needs run.train.evals.   "
    if of_average:
        hint = "It needs run.train.average.   "
    yield origin.problem(
        "metric.name",
        f"metric.name is {show(name)}, which no run logs.",
        f"{hint}Common metrics: val/loss, train/loss, tokens_per_s. For a part of the "
        "model: params/<part>/norm.",
    )


def _beside_problems(sweep: SweepSpec, where: set[str], origin: Origin) -> Iterator[SpecProblem]:
    """Reject a metric of tasks beside the training where it comes too late, or in two parts."""
    metric = f"metric.name is {show(sweep.metric.name)}"
    if len(where) > 1:
        message = f"{metric}, but some tasks are beside the training, so no step has the mean."
        yield origin.problem("metric.name", message, "Give all of train.evals the same where.")
    rules = {"pruning": sweep.pruning is not None, "method": sweep.method == "tpe"}
    for path in (path for path, judges in rules.items() if judges and "beside" in where):
        yield origin.problem(
            path,
            f"{metric}, of a task beside the training: its evaluations wait while trials need the "
            f"GPUs, so its values come too late for {path if path == 'pruning' else 'tpe'}.",
            "Use where: training, or a grid, random or list without pruning.",
            at_key=True,
        )


def budget_problems(
    sweep: SweepSpec, trials: Iterable[tuple[dict[str, Any], RunSpec]], origin: Origin
) -> Iterator[SpecProblem]:
    """Reject trials that train on different numbers of tokens: that alone changes the loss."""
    if sweep.budget == "any" or sweep.run.trainer is not None:
        return
    first: tuple[dict[str, Any], TrainConfig] | None = None
    for parameters, run in trials:
        if first is None:
            first = (parameters, run.own)
        elif not _equal_budget(first[1], run.own):
            yield origin.problem(
                "parameters" if sweep.parameters else "points",
                f"the trials train on different numbers of tokens: {_point(first[0])} on "
                f"{first[1].total_tokens:,}, {_point(parameters)} on {run.own.total_tokens:,}.",
                "Change train.steps with the batch (method: list), or allow it with budget: any",
            )
            return


def _equal_budget(one: TrainConfig, other: TrainConfig) -> bool:
    """Return whether both train on as many tokens; a token budget is met to within a step."""
    slack = 0
    if one.has_budget and other.has_budget:
        slack = max(one.tokens_per_step, other.tokens_per_step) - 1
    return abs(one.total_tokens - other.total_tokens) <= slack


def _point(parameters: dict[str, Any]) -> str:
    return ", ".join(f"{path}={show(value)}" for path, value in parameters.items())
