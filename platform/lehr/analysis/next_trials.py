"""The trials to add next to a sweep over learning rates, as a command."""

from __future__ import annotations

import json
import shlex
from collections.abc import Iterable, Sequence
from typing import Any

from lehr.analysis.lr_fit import LrFit, rounded
from lehr.base import formats
from lehr.base.names import is_seed, seed_path
from lehr.schemas.sweeps import NextTrials, SweepDetail


def untried(sweep: SweepDetail, rates: Iterable[float], parameter: str) -> tuple[float, ...]:
    """Return those proposed rates of which the sweep has no trial, not even one without a value."""
    values = (trial.parameters.get(parameter) for trial in sweep.trials)
    known = {rounded(value) for value in values if isinstance(value, int | float)}
    return tuple(rate for rate in rates if rate not in known)


def next_trials(sweep: SweepDetail, rates: Sequence[float], parameter: str) -> NextTrials | None:
    """Return the extension that adds learning rates.

    None where there are none, or where the sweep takes no values: a search chooses its points
    itself, and Lehr cannot start a run that it did not start.
    """
    external = (sweep.spec["run"].get("trainer") or {}).get("external")
    if not rates or sweep.method not in {"grid", "list"} or external:
        return None
    seeds = len(sweep.spec.get("seeds") or [None])
    if sweep.method == "grid":
        others = [path for path in sweep.spec["parameters"] if path != parameter]
        for path in others:
            seeds *= len(sweep.spec["parameters"][path]["values"])
        parameters: dict[str, list[Any]] | None = {parameter: list(rates)}
        points: list[dict[str, Any]] | None = None
        argument = f"{parameter}=[{','.join(formats.parameter(rate, parameter) for rate in rates)}]"
    else:
        parameters, points = None, [{parameter: rate} for rate in rates]
        argument = f"points={json.dumps(points)}"
    return NextTrials(
        parameters=parameters,
        points=points,
        trials=len(rates) * seeds,
        command=f"lehr extend {sweep.id} {shlex.quote(argument)}",
    )


def next_seeds(sweep: SweepDetail, count: int) -> NextTrials | None:
    """Return the extension that repeats each trial with ``count`` more seeds.

    None for no seeds, where the sweep has none of its own, or where its method is a search.
    """
    path = next((path for path in sweep.parameters if is_seed(path)), None)
    if not count or path is None or sweep.method not in {"grid", "list"}:
        return None
    if sweep.spec.get("seeds") is None and sweep.method == "list":
        return None
    known = {trial.parameters.get(path) for trial in sweep.trials}
    used = (trial.parameters.get(path) for trial in sweep.seeded)
    whole = [seed for seed in used if isinstance(seed, int)]
    first = max(whole, default=-1) + 1
    seeds = list(range(first, first + count))
    argument = f"{path}=[{','.join(map(str, seeds))}]"
    return NextTrials(
        parameters={path: seeds},
        points=None,
        trials=len(sweep.trials) // max(1, len(known)) * count,
        command=f"lehr extend {sweep.id} {shlex.quote(argument)}",
    )


def repetitions(sweep: SweepDetail, fit: LrFit, parameter: str) -> NextTrials | None:
    """Return the proposed seeds as repetitions of a trial of each rate.

    None for no seeds, or where Lehr cannot start the runs with another one.
    """
    run, n = sweep.spec["run"], fit.next_seeds
    program, stages = run.get("trainer"), (run.get("train") or {}).get("stages")
    fixed = program and (program.get("external") or seed_path(program.get("args") or {}) is None)
    if not n or stages or fixed:
        return None
    own = {trial.parameters.get(parameter): trial.run.id for trial in sweep.trials}
    runs = [own[rate] for rate in fit.seeded_rates if rate in own]
    command = "; ".join(f"lehr seeds {run_id} -n {n}" for run_id in runs)
    return NextTrials(repeat=runs, trials=len(runs) * n, command=command)
