"""How much each parameter of a sweep decides its metric, by Optuna's PED-ANOVA.

The share of a parameter is how far the distribution of its values among the better half of the
trials is from that among all (Watanabe et al. 2023, arXiv:2304.10255). It needs no model and no
scikit-learn, and works with lists, grids and searches alike.
"""

from __future__ import annotations

import json
import warnings
from typing import TYPE_CHECKING, Any

from lehr.analysis.sweep_result import is_number, outcome
from lehr.base.names import is_seed

if TYPE_CHECKING:
    from lehr.schemas.sweeps import SweepDetail

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
