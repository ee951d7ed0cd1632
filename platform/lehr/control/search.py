"""Choose the next points of a sweep, and the trials to prune.

Samplers and pruners are Optuna's. Their state is not stored: it is replayed from the recorded
trials at each decision, so a restart changes no choice. The same history gives the same answer.
"""

from __future__ import annotations

import logging
import math
import warnings
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Literal, assert_never

import numpy as np

from lehr.analysis.forecast import UNPLANNED, Planned, forecast
from lehr.base.names import Goal
from lehr.specs.search import (
    AshaPruning,
    ForecastPruning,
    HyperbandPruning,
    MedianPruning,
    Pruning,
    Range,
    Space,
)

if TYPE_CHECKING:
    from optuna.distributions import BaseDistribution
    from optuna.pruners import BasePruner
    from optuna.trial import FrozenTrial
    from optuna.trial import Trial as LiveTrial


TrialKind = Literal["running", "completed", "pruned", "failed"]


@dataclass(frozen=True)
class TrialReport:
    """A value of the sweep's metric of one trial."""

    step: int
    value: float
    at: float
    """Time of the report, in seconds since the epoch: asynchronous pruners use only what was
    known then.
    """


@dataclass(frozen=True)
class SearchTrial:
    number: int  # The trial's number, from 1.
    parameters: Mapping[str, Any]
    state: TrialKind
    reports: tuple[TrialReport, ...] = ()
    total_steps: int | None = None
    planned: Planned = UNPLANNED


@dataclass(frozen=True)
class Prune:
    number: int
    step: int
    message: str


def ask(
    space: Space, trials: Sequence[SearchTrial], *, goal: Goal, seed: int, number: int
) -> dict[str, Any]:
    """Return the parameters of point ``number``, chosen by TPE (Bergstra et al. 2011).

    Running trials count as poor, so that parallel trials spread out.
    """
    optuna = _optuna()
    sampler = optuna.samplers.TPESampler(seed=_mix(seed, number), constant_liar=True)
    study = optuna.create_study(direction=goal, sampler=sampler)
    distributions = {path: _distribution(choice) for path, choice in space.items()}
    for trial in sorted(trials, key=lambda trial: trial.number):
        if set(trial.parameters) == set(space):
            study.add_trial(_frozen(trial, space, distributions))
    params = study.ask(distributions).params
    return {path: _value(choice, params[path]) for path, choice in space.items()}


def prune(
    rule: Pruning, trials: Sequence[SearchTrial], *, goal: Goal, total_steps: int
) -> list[Prune]:
    """Return the running trials to prune now, each with the reason."""
    if isinstance(rule, ForecastPruning):
        return _without_a_chance(rule, trials)
    optuna = _optuna()
    study = optuna.create_study(direction=goal, pruner=_pruner(rule, total_steps), study_name="s")
    live: dict[int, LiveTrial] = {}
    for trial in sorted(trials, key=lambda trial: trial.number):
        state = optuna.trial.TrialState.RUNNING
        study.add_trial(optuna.trial.create_trial(state=state, params={}, distributions={}))
        added = study.get_trials(deepcopy=False)[-1]
        # Optuna has no public method to continue a trial that was added.
        live[trial.number] = optuna.trial.Trial(study, added._trial_id)  # noqa: SLF001
    by_number = {trial.number: trial for trial in trials}
    verdicts: dict[int, Prune] = {}
    for report, number in sorted(
        ((report, trial.number) for trial in trials for report in trial.reports),
        key=lambda pair: (pair[0].at, pair[1], pair[0].step),
    ):
        if number in verdicts:
            continue
        handle = live[number]
        handle.report(report.value, report.step)
        if handle.should_prune():
            verdicts[number] = Prune(number, report.step, _reason(rule, report))
            study.tell(handle, state=optuna.trial.TrialState.PRUNED)
        elif by_number[number].state == "completed" and report is by_number[number].reports[-1]:
            if math.isfinite(report.value):
                study.tell(handle, report.value)
            else:
                study.tell(handle, state=optuna.trial.TrialState.FAIL)
    return [
        verdict
        for number, verdict in sorted(verdicts.items())
        if by_number[number].state == "running"
    ]


def replay(rule: ForecastPruning, trials: Sequence[SearchTrial], *, looks: int = 12) -> list[Prune]:
    """Return which of these completed trials the rule would have pruned, with so many looks."""
    seen = [
        (trial.reports[known - 1].at, trial.number, known)
        for trial in trials
        for known in {len(trial.reports) * look // looks for look in range(1, looks + 1)} - {0}
    ]
    whole = {trial.number: trial for trial in trials}
    then = {number: replace(trial, reports=()) for number, trial in whole.items()}
    verdicts: dict[int, Prune] = {}
    for _, number, known in sorted(seen):
        reports = whole[number].reports
        state: TrialKind = "completed" if known == len(reports) else "running"
        if number not in verdicts:
            then[number] = replace(whole[number], reports=reports[:known], state=state)
        for verdict in _without_a_chance(rule, [*then.values()]):
            verdicts[verdict.number] = verdict
            then[verdict.number] = replace(then[verdict.number], state="pruned")
    return [*verdicts.values()]


def _without_a_chance(rule: ForecastPruning, trials: Sequence[SearchTrial]) -> list[Prune]:
    """Return the running trials that end worse than another one with 99 %.

    Their ends are taken for independent. Trials of one sweep rather err alike, which is safer.
    """
    ends = {trial.number: end for trial in trials if (end := _end(trial)) is not None}
    verdicts: list[Prune] = []
    for trial in sorted(trials, key=lambda trial: trial.number):
        newest = trial.reports[-1] if trial.reports else None
        if trial.state != "running" or newest is None or newest.step < rule.min_steps:
            continue
        reason = _reason(rule, newest)
        if not math.isfinite(newest.value):
            verdicts.append(Prune(trial.number, newest.step, reason))
        elif trial.number in ends:
            low, value, _ = ends[trial.number]
            better = (
                (its, number)
                for number, (_, its, high) in ends.items()
                if value - its > math.hypot(value - low, high - its)
            )
            if rival := min(better, default=None):
                ways = f"it would end at {value:.4g}, trial {rival[1]} at {rival[0]:.4g}"
                verdicts.append(Prune(trial.number, newest.step, f"{reason}: {ways}"))
    return verdicts


def _end(trial: SearchTrial) -> tuple[float, float, float] | None:
    """Return the metric at the end of a trial, between bounds that hold it with 98 %, if known."""
    if not trial.reports or trial.state in {"pruned", "failed"}:
        return None
    steps, losses = zip(*((one.step, one.value) for one in trial.reports), strict=True)
    if trial.state == "completed":
        return (losses[-1],) * 3 if math.isfinite(losses[-1]) else None
    found = forecast(steps, losses, trial.total_steps, *trial.planned)
    return (found.most[0], found.value, found.most[1]) if found.value and found.most else None


def _optuna() -> Any:
    import optuna

    optuna.logging.set_verbosity(logging.ERROR)
    warnings.filterwarnings("ignore", category=optuna.exceptions.ExperimentalWarning)
    return optuna


def _mix(seed: int, number: int) -> int:
    """Mix two numbers to a 32-bit seed; neighbours must not give related streams."""
    return int(np.random.SeedSequence((seed, number)).generate_state(1)[0])


def _distribution(choice: Range | Sequence[Any]) -> BaseDistribution:
    optuna = _optuna()
    if not isinstance(choice, Range):
        # Indices instead of values: Optuna's categories must be scalars, Lehr's may be anything.
        found: BaseDistribution
        found = optuna.distributions.CategoricalDistribution(tuple(range(len(choice))))
        return found
    if choice.distribution == "int_uniform":
        found = optuna.distributions.IntDistribution(int(choice.min), int(choice.max))
    else:
        log = "log" in choice.distribution
        found = optuna.distributions.FloatDistribution(choice.min, choice.max, log=log)
    return found


def _value(choice: Range | Sequence[Any], drawn: Any) -> Any:
    if not isinstance(choice, Range):
        return choice[drawn]
    return drawn if choice.distribution == "int_uniform" else choice.rounded(drawn)


def _frozen(
    trial: SearchTrial, space: Space, distributions: Mapping[str, BaseDistribution]
) -> FrozenTrial:
    optuna = _optuna()
    params = {
        path: value if isinstance(space[path], Range) else list(space[path]).index(value)
        for path, value in trial.parameters.items()
    }
    last = trial.reports[-1].value if trial.reports else math.nan
    states = optuna.trial.TrialState
    state = {
        "running": states.RUNNING,
        "completed": states.COMPLETE if math.isfinite(last) else states.FAIL,
        "pruned": states.PRUNED,
        "failed": states.FAIL,
    }[trial.state]
    frozen: FrozenTrial = optuna.trial.create_trial(
        state=state,
        value=last if state is states.COMPLETE else None,
        params=params,
        distributions=dict(distributions),
        intermediate_values={report.step: report.value for report in trial.reports},
    )
    return frozen


def _pruner(rule: AshaPruning | MedianPruning | HyperbandPruning, total_steps: int) -> BasePruner:
    optuna = _optuna()
    pruner: BasePruner
    match rule:
        case AshaPruning():
            pruner = optuna.pruners.SuccessiveHalvingPruner(
                min_resource=rule.min_steps, reduction_factor=rule.reduction
            )
        case MedianPruning():
            pruner = optuna.pruners.MedianPruner(
                n_startup_trials=rule.startup_trials, n_warmup_steps=rule.min_steps
            )
        case HyperbandPruning():
            pruner = optuna.pruners.HyperbandPruner(
                min_resource=rule.min_steps,
                max_resource=total_steps,
                reduction_factor=rule.reduction,
            )
        case _:
            assert_never(rule)
    return pruner


def _reason(rule: Pruning, report: TrialReport) -> str:
    if not math.isfinite(report.value):
        return f"{rule.name}: the metric was {report.value} at step {report.step}"
    return f"{rule.name}: {report.value:.4g} at step {report.step} is {rule.pruned_for}"
