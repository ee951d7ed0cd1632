"""How much each parameter of a sweep decides its metric, by Optuna's PED-ANOVA.

The share of a parameter is how far the distribution of its values among the best trials is from
that among all. It needs no model and no scikit-learn, and works with lists, grids and searches
alike.
"""

from __future__ import annotations

import json
import warnings
from typing import TYPE_CHECKING, Any

from lehr.analysis.sweep_result import is_number, outcome
from lehr.parameter_names import is_seed

if TYPE_CHECKING:
    from lehr.schemas.sweeps import SweepDetail

ENOUGH = 10
"""Of fewer trials the shares would be chance."""


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
    if len(ranked) < ENOUGH or len(varied) < 2:
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
        evaluator = optuna.importance.PedAnovaImportanceEvaluator()
    found = optuna.importance.get_param_importances(study, evaluator=evaluator)
    return dict(sorted(found.items(), key=lambda one: -one[1]))


def _key(value: Any) -> str:
    return json.dumps(value, sort_keys=True)


def _distribution(values: list[Any]) -> Any:
    import optuna

    if all(is_number(value) for value in values):
        low, high = float(min(values)), float(max(values))
        return optuna.distributions.FloatDistribution(low, high, log=low > 0 and high / low > 10)
    return optuna.distributions.CategoricalDistribution(sorted({_key(value) for value in values}))


def _place(value: Any, distribution: Any) -> Any:
    return float(value) if hasattr(distribution, "low") else _key(value)
