"""The result of a sweep: the best value, how certain it is, and which parameter decides most."""

from __future__ import annotations

import json
import math
import warnings
from typing import Any, Literal, TypeGuard

from lehr.analysis.lr_fit import USED, LrFit, Range, fit_learning_rate, rates_below
from lehr.analysis.noise import Noise, is_value
from lehr.analysis.significance import Group, mean_text
from lehr.base import formats
from lehr.base.names import is_rate, is_seed
from lehr.errors import NotFound, did_you_mean
from lehr.schemas.sweeps import SweepDetail, TrialView


def parameter_choice(sweep: SweepDetail, requested: str | None = None) -> str:
    """Return the parameter for the figure's x axis: the requested one, else a learning rate, else
    the first.

    Raises:
        NotFound: the sweep does not vary the requested one.
    """
    if requested is not None:
        if requested not in sweep.parameters:
            varied = f"It varies {', '.join(sweep.parameters)}."
            raise NotFound(
                f"the sweep {sweep.name} does not vary {requested!r}.",
                hint=did_you_mean(requested, sweep.parameters) or varied,
            )
        return requested
    rates = [path for path in sweep.parameters if is_rate(path)]
    return (rates or sweep.parameters)[0]


def sweep_fit(sweep: SweepDetail, parameter: str) -> LrFit | None:
    """Return the fit of loss over learning rate, for sweeps where it is valid."""
    if not _fits(sweep, parameter):
        return None
    beside = sweep.noise_elsewhere
    noise = None if beside is None else Noise(beside.deviation, beside.freedom, beside.groups)
    return fit_learning_rate(*_losses(sweep, parameter), _used(sweep), noise)


def lower_rates(sweep: SweepDetail, parameter: str) -> tuple[float, ...]:
    """Return the rates to try where all trials with a result diverged; else none."""
    if not _fits(sweep, parameter):
        return ()
    points, pruned = _losses(sweep, parameter)
    if not points or any(is_value(loss) for _, loss in points):
        return ()
    return rates_below([*(rate for rate, _ in points), *pruned], _used(sweep))


def _used(sweep: SweepDetail) -> Range:
    """Return the rates that the optimizer is used with. That of a program is not known, nor one
    that replaces Lehr's.
    """
    train = sweep.spec.get("run", {}).get("train")
    if train is None or (train.get("parts") or {}).get("optimizer"):
        return USED["unknown"]
    optimizer = train.get("optimizer", {})
    own = optimizer.get("name") == "muon" and optimizer.get("adjust_lr") == "original"
    return USED["muon" if own else "adamw"]


def _fits(sweep: SweepDetail, parameter: str) -> bool:
    """Return whether the sweep's metric is a loss over the learning rate alone."""
    if not is_rate(parameter) or sweep.goal != "minimize" or sweep.held_out == "different":
        return False
    # Other parameters would look like noise, except seeds, which are noise.
    return all(path == parameter or is_seed(path) for path in sweep.parameters)


def _losses(sweep: SweepDetail, parameter: str) -> tuple[list[tuple[float, float]], list[float]]:
    """Return the rate and loss of each trial with a result, and the pruned rates."""
    points: list[tuple[float, float]] = []
    pruned: list[float] = []
    for trial in sweep.seeded:
        rate = trial.parameters.get(parameter)
        if not is_number(rate) or not 0 < rate < math.inf:
            continue
        if outcome(trial) == "ranked" and trial.compared_value is not None:
            points.append((float(rate), trial.compared_value))
        elif outcome(trial) == "diverged":
            points.append((float(rate), math.nan))
        elif trial.run.state == "pruned":
            pruned.append(float(rate))
    return points, pruned


def sweep_verdict(sweep: SweepDetail, parameter: str) -> str:
    """Return the answer as a sentence: the best value, the fit, whether it is at an edge."""
    if sweep.held_out == "different":
        return f"No trial is best. {sweep.held_out_note}"
    if sweep.best_parameters is None or sweep.best_value is None:
        return _without_best(sweep)
    at = formats.point(sweep.best_parameters)
    if all(is_seed(path) for path in sweep.parameters):
        parts = [_of_seeds(sweep)]
    else:
        parts = [f"Best {at}: {sweep.metric} {sweep.best_value:#.4g}"]
    fit = sweep_fit(sweep, parameter)
    if fit is not None and fit.recommended is not None and fit.sure is not None:
        if not fit.sure[0] <= sweep.best_parameters[parameter] <= fit.sure[1]:
            # By all trials, the best rate is another one than that of the lowest loss.
            parts = [f"Lowest {sweep.metric} {sweep.best_value:#.4g} at {at}"]
        low, high = (formats.scientific(rate, 2) for rate in fit.sure)
        near = formats.scientific(fit.recommended, 2)
        parts.append(f"with 95 % the best rate is between {low} and {high}, probably near {near}")
    if fit is not None and len({trial.compared_value for trial in sweep.trials}) > 2:
        if fit.edge is None:
            parts.append("not at the edge of what was tried")
        elif not _comes_beyond(sweep, parameter, fit.edge):
            side = "lowest" if fit.edge == "low" else "highest"
            beyond = f"it is the {side} that was tried, so the best may lie beyond"
            if _is_beyond(sweep, parameter, fit):
                beyond = "what was tried beyond it is too far off, so the best may lie between"
            if fit.bound is not None:
                beyond += f", with 95 % {fit.side} {formats.scientific(fit.bound, 2)}"
            parts.append(beyond)
    if sweep.state != "finished" and sweep.compared_at_step is not None:
        parts.append(f"compared at step {sweep.compared_at_step:,}, still running")
    return "; ".join(parts) + "."


def _is_beyond(sweep: SweepDetail, parameter: str, fit: LrFit) -> bool:
    """Return whether a rate was judged beyond the edge, as far away as a mistyped one."""
    judged = (trial for trial in sweep.trials if outcome(trial) in {"ranked", "diverged"})
    rates = [trial.parameters.get(parameter) for trial in judged]
    numbers = [rate for rate in rates if is_number(rate)]
    return min(numbers) < fit.best if fit.edge == "low" else max(numbers) > fit.best


def _comes_beyond(sweep: SweepDetail, parameter: str, edge: str) -> bool:
    """Return whether a trial beyond the best one is not yet where trials are compared."""
    best = (sweep.best_parameters or {}).get(parameter)
    for trial in sweep.trials:
        rate = trial.parameters.get(parameter)
        if not is_number(rate) or not is_number(best) or trial.run.ended_at is not None:
            continue
        beyond = rate < best if edge == "low" else rate > best
        if beyond and outcome(trial) in {"pending", "silent"}:
            return True
    return False


def _without_best(sweep: SweepDetail) -> str:
    if sweep.state != "finished":
        return f"No trial has a {sweep.metric} to compare yet."
    without = sum(outcome(trial) != "ranked" for trial in sweep.trials)
    if without == len(sweep.trials):
        return f"No trial ended with a finite {sweep.metric}."
    ended = f"ended without a finite {sweep.metric}"
    if all(is_seed(path) for path in sweep.parameters):
        return f"No mean: {without} of {len(sweep.trials)} seeds {ended}."
    return f"No point is best: at least one seed of each {ended}."


def _of_seeds(sweep: SweepDetail) -> str:
    """Return the mean of a sweep that varies nothing but the seed."""
    found = (trial.compared_value for trial in sweep.trials)
    values = tuple(value for value in found if value is not None)
    seeds = "seed" if len(values) == 1 else "seeds"
    return f"{len(values)} {seeds}: {sweep.metric} {mean_text(Group(sweep.name, values))}"


def outcome(trial: TrialView) -> Literal["ranked", "diverged", "gave_up", "pending", "silent"]:
    """Return the outcome of a trial. ``pending``: its value cannot be compared yet; ``silent``: it
    has no value so far.
    """
    if is_finite(trial.compared_value):
        return "ranked"
    if trial.run.cause == "nan_loss" or (trial.value is not None and not is_finite(trial.value)):
        return "diverged"
    if trial.run.state in {"failed", "cancelled", "pruned"}:
        return "gave_up"
    return "silent" if trial.value is None else "pending"


def is_number(value: object) -> TypeGuard[int | float]:
    return isinstance(value, int | float) and not isinstance(value, bool)


def is_finite(value: float | None) -> bool:
    return value is not None and is_value(value)


ENOUGH = 10
"""Of fewer trials the shares would be chance: Optuna advises at least 5 in the better part."""
FOR_EACH = 5
"""So many trials for each parameter as well. A parameter that decides nine tenths of four had a
share of 43 % with 12 random points, and of 73 % with 24."""
BETTER = 0.5
"""Optuna's default is the best tenth: two trials of a small sweep. In a grid of five rates and two
weight decays, of which only the rate had an effect, its share was 52 % then."""


def parameter_importance(sweep: SweepDetail) -> dict[str, float]:
    """Return each varied parameter's share, the largest first; empty where there is too little.

    Seeds are no parameter: what they change is noise.
    """
    ranked = [trial for trial in sweep.trials if outcome(trial) == "ranked"]
    varied = [
        path
        for path in sweep.parameters
        if not is_seed(path) and len({_key(trial.parameters.get(path)) for trial in ranked}) > 1
    ]
    if len(varied) < 2 or len(ranked) < max(ENOUGH, FOR_EACH * len(varied)):
        return {}
    import optuna

    optuna.logging.set_verbosity(optuna.logging.ERROR)
    places = {
        path: _distribution([trial.parameters.get(path) for trial in ranked]) for path in varied
    }
    study = optuna.create_study(direction=sweep.goal)
    for trial in ranked:
        given = {path: _place(trial.parameters.get(path), places[path]) for path in varied}
        study.add_trial(
            optuna.trial.create_trial(
                params=given, distributions=places, value=trial.compared_value
            )
        )
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", optuna.exceptions.ExperimentalWarning)
        evaluator = optuna.importance.PedAnovaImportanceEvaluator(target_quantile=BETTER)
    found = optuna.importance.get_param_importances(study, evaluator=evaluator)
    return dict(sorted(found.items(), key=lambda one: -one[1]))


def _key(value: Any) -> str:
    return json.dumps(value, sort_keys=True)


def _distribution(values: list[Any]) -> Any:
    """Return where a parameter may lie. Values that recur, as in a grid, are compared singly."""
    import optuna

    keys = {_key(value) for value in values}
    if all(is_number(value) for value in values) and len(keys) > len(values) / 2:
        low, high = float(min(values)), float(max(values))
        return optuna.distributions.FloatDistribution(low, high, log=low > 0 and high / low > 10)
    return optuna.distributions.CategoricalDistribution(sorted(keys))


def _place(value: Any, distribution: Any) -> Any:
    return float(value) if hasattr(distribution, "low") else _key(value)
