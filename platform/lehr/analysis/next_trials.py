"""The trials to add next to a sweep over learning rates, as a command."""

from __future__ import annotations

import json
import shlex
from typing import TYPE_CHECKING, Any

from lehr.schemas.sweeps import NextTrials

if TYPE_CHECKING:
    from lehr.analysis.lr_fit import LrFit
    from lehr.schemas.sweeps import SweepDetail

_DIGITS = 2


def next_trials(sweep: SweepDetail, fit: LrFit, parameter: str) -> NextTrials | None:
    """Return the extension that adds the fit's ``next_rates``.

    None where there are none, or where the sweep's method does not take values: a search chooses
    its points itself.

    Args:
        sweep: with its spec and trials.
        fit: the verdict on its learning rates.
        parameter: path of the learning rate.
    """
    rounded = (float(f"{rate:.{_DIGITS}g}") for rate in fit.next_rates)
    tried = {trial.parameters.get(parameter) for trial in sweep.trials}
    rates = [rate for rate in dict.fromkeys(rounded) if rate not in tried]
    if not rates or sweep.method not in {"grid", "list"}:
        return None
    seeds = len(sweep.spec.get("seeds") or [None])
    if sweep.method == "grid":
        others = [path for path in sweep.spec["parameters"] if path != parameter]
        for path in others:
            seeds *= len(sweep.spec["parameters"][path]["values"])
        parameters: dict[str, list[Any]] | None = {parameter: list(rates)}
        points: list[dict[str, Any]] | None = None
        argument = f"{parameter}=[{','.join(f'{rate:g}' for rate in rates)}]"
    else:
        parameters, points = None, [{parameter: rate} for rate in rates]
        argument = f"points={json.dumps(points)}"
    return NextTrials(
        parameters=parameters,
        points=points,
        trials=len(rates) * seeds,
        command=f"lehr extend {sweep.id} {shlex.quote(argument)}",
    )
