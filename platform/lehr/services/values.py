"""The values of many runs side by side: their configs, and newest values of any metric."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from lehr.analysis.compare import flatten
from lehr.schemas.runs import RunValuesView
from lehr.services.compare import groups_of
from lehr.services.many_runs import find_runs, specs_with_configs

if TYPE_CHECKING:
    from lehr.services.context import Context

_IDENTITY = ("name", "notes", "tags", "project", "kind")
"""Fields that a run's view has anyway."""


def values_of_runs(
    context: Context,
    refs: Sequence[str],
    metrics: Sequence[str] = (),
    *,
    names: bool = False,
    by: str = "",
) -> RunValuesView:
    """Return the configs of these runs by dotted path, and their newest values of ``metrics``.

    With ``names``, also the names of all metrics that any of them has logged; with ``by``, the
    name of each run's group, as ``groups_of`` makes them.

    Raises:
        NotFound: there is no such run, or none of them has what ``by`` names.
    """
    store = context.store
    runs = list({one.id: one for one in find_runs(store, refs)}.values())
    ids = [run.id for run in runs]
    specs = specs_with_configs(store, runs)
    flat = [
        {path: value for path, value in flatten(spec).items() if path not in _IDENTITY}
        for spec in specs
    ]
    same: dict[str, Any] = {}
    differing: dict[str, list[Any]] = {}
    for path in dict.fromkeys(path for values in flat for path in values):
        column = [values.get(path) for values in flat]
        if len({json.dumps(value, sort_keys=True) for value in column}) == 1:
            same[path] = column[0]
        else:
            differing[path] = column
    every = names or by
    latest = store.series.latest(ids, None if every else metrics) if every or metrics else {}
    newest = [{name: at.value for name, at in latest.get(run_id, {}).items()} for run_id in ids]
    return RunValuesView(
        runs=ids,
        same=same,
        differing=differing,
        metrics={name: [values.get(name) for values in newest] for name in metrics},
        metric_names=sorted({name for values in newest for name in values}) if names else [],
        groups=groups_of(runs, specs, newest, by) if by else [],
    )
