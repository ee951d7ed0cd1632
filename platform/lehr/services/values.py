"""The values of many runs side by side: their configs, and newest values of any metric."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from lehr.analysis.compare import flatten
from lehr.schemas.runs import RunValuesView
from lehr.services.find_runs import find_runs, specs_with_configs

if TYPE_CHECKING:
    from lehr.services.context import Context

_IDENTITY = ("name", "notes", "tags", "project", "kind")
"""Fields that a run's view has anyway."""


def values_of_runs(
    context: Context, refs: Sequence[str], metrics: Sequence[str] = (), *, names: bool = False
) -> RunValuesView:
    """Return the configs of these runs by dotted path, and their newest values of ``metrics``.

    With ``names``, also the names of all metrics that any of them has logged.

    Raises:
        NotFound: there is no such run.
    """
    store = context.store
    runs = list({one.id: one for one in find_runs(store, refs)}.values())
    ids = [run.id for run in runs]
    flat = [
        {path: value for path, value in flatten(spec).items() if path not in _IDENTITY}
        for spec in specs_with_configs(store, runs)
    ]
    same: dict[str, Any] = {}
    differing: dict[str, list[Any]] = {}
    for path in dict.fromkeys(path for values in flat for path in values):
        column = [values.get(path) for values in flat]
        if len({json.dumps(value, sort_keys=True) for value in column}) == 1:
            same[path] = column[0]
        else:
            differing[path] = column
    latest = store.series.latest(ids, None if names else metrics) if names or metrics else {}
    return RunValuesView(
        runs=ids,
        same=same,
        differing=differing,
        metrics={
            name: [
                found.value if (found := latest.get(run_id, {}).get(name)) else None
                for run_id in ids
            ]
            for name in metrics
        },
        metric_names=sorted({name for found in latest.values() for name in found}) if names else [],
    )
