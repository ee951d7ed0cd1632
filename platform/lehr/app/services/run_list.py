"""Lists of runs: newest first, or by columns, settings and metrics, groups kept together."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from operator import attrgetter
from typing import Any, Literal

import orjson

from lehr.analysis.compare import flatten
from lehr.app.services.compare import column_of
from lehr.app.services.context import Context
from lehr.app.services.many_runs import newest_values, specs_with_configs
from lehr.base.names import ARGUMENTS
from lehr.control.lifecycle import REPORTING
from lehr.errors import UserError, did_you_mean
from lehr.specs.stored import StoredSpec
from lehr.store.records.lists import RowPage, number_of
from lehr.store.records.run_lists import FACTS, SORTED, WITH_SPECS

Group = Literal["sweep", "rollout"]
_METRICS = {
    "loss": "train/loss",
    "val": "val/loss",
    "mfu": "mfu",
    **dict.fromkeys(("tokens", "tok/s"), "tokens_per_s"),
}
_FACTS: dict[str, Callable[[Any], Any]] = {
    **{name: attrgetter(name) for name in ("name", "project", "state", "id")},
    "submitted": attrgetter("created_at"),
    "tags": lambda row: " ".join(orjson.loads(row.tags)) or None,
}
_READ = ("hours", "eta", "params", "best")
_OF_SPEC = ("gpus", "step")
_LOOKED_AT = 50
"""Runs whose settings a short name is looked for in, the newest."""


def list_runs(
    context: Context,
    *,
    sort: str | None = None,
    group: Group | None = None,
    limit: int = 100,
    cursor: str | None = None,
    **wanted: Any,
) -> bytes:
    """Return a page of runs as JSON.

    ``sort`` has keys with commas between them, each with ``-`` before it if the highest comes
    first. What is unknown or not finite comes last either way, and equal runs newest first. With
    ``group``, the runs of each are together, at the place of its first.

    Raises:
        UserError: no run has what ``sort`` names, or the cursor is not from a page.
    """
    store, presenter = context.store, context.presenter.runs
    if not sort:
        page = store.runs.page(selected=FACTS, limit=limit, cursor=cursor, **wanted)
        return presenter.page(page)
    first = number_of(cursor or "0")
    ids = _ordered(context, sort, group, wanted)
    shown = ids[first : first + limit]
    facts = {
        one.id: one
        for one in store.runs.page(selected=FACTS, ids=shown, archived=None, limit=limit).items
    }
    following = str(first + limit) if first + limit < len(ids) else None
    items = [facts[one] for one in shown if one in facts]
    return presenter.page(RowPage(items, following, len(ids)))


def _ordered(
    context: Context, sort: str, group: Group | None, wanted: Mapping[str, Any]
) -> list[str]:
    """Return the ids of all runs that match, in order."""
    store = context.store
    orders = [(one.removeprefix("-"), one.startswith("-")) for one in sort.split(",") if one]
    plain = all(key in {*_FACTS, *_METRICS, *_READ} for key, _ in orders)
    rows = store.runs.matching(SORTED if plain else WITH_SPECS, **wanted)
    for key, down in reversed(orders):
        known = {run_id: v for run_id, v in _values(context, rows, key).items() if _is_known(v)}
        first = [row for row in rows if row.id in known]
        first.sort(key=lambda row: _comparable(known[row.id]), reverse=down)
        rows = [*first, *(row for row in rows if row.id not in known)]
    ids = [row.id for row in rows]
    if group is None:
        return ids
    of = {row.id: row.sweep_id for row in rows}
    if group == "rollout":
        of = store.rollouts.of_runs(ids)
    together: dict[str, list[str]] = {}
    for run_id in ids:
        together.setdefault(of.get(run_id) or run_id, []).append(run_id)
    return [run_id for members in together.values() for run_id in members]


def _is_known(value: Any) -> bool:
    return value is not None and (not isinstance(value, float) or math.isfinite(value))


def _comparable(value: Any) -> tuple[Any, ...]:
    """Return what numbers, and words after them, are compared by."""
    if isinstance(value, int | float):
        return (False, value)
    return (True, str(value).casefold(), str(value))


def _values(context: Context, rows: Sequence[Any], key: str) -> dict[str, Any]:
    """Return the value of a key in each run, by id."""
    store, views = context.store, context.presenter.runs
    if of := _FACTS.get(key):
        return {row.id: of(row) for row in rows}
    tried = [row for row in rows if row.attempt]
    ids = [row.id for row in tried]
    if key == "hours":
        return {run_id: used.hours for run_id, used in store.attempts.use_by_run(ids).items()}
    if key == "eta":
        live = [row.id for row in rows if row.state in REPORTING]
        return {one.id: one.eta_s for one in views.views(store.runs.by_ids(live))}
    if key == "params":
        return views.parameters(store.runs.by_ids(ids))
    if key in _OF_SPEC:
        return {row.id: _of_spec(row, key) for row in rows}
    names = store.series.names()
    of_metric = key in _METRICS or key in names or key.startswith(("best:", "versus:"))
    if key == "best":
        metrics = store.sweeps.metric_names()
        newest = newest_values(store, ids, {"val/loss", *metrics.values()})
        return {row.id: newest[row.id].get(metrics.get(row.sweep_id, "val/loss")) for row in tried}
    if of_metric:
        runs = store.runs.by_ids(ids) if key.startswith("versus:") else tried
        values = column_of(store, runs, _METRICS.get(key, key))
        return dict(zip((run.id for run in runs), values, strict=True))
    if (settings := _settings(context, rows, key)) or not rows:
        return settings
    if _settings(context, store.runs.matching(WITH_SPECS, archived=None), key):
        return settings
    valid = [*_FACTS, *_METRICS, *_OF_SPEC, *_READ, *names]
    raise UserError(
        f"sort: no run has a setting or a metric {key!r}.",
        hint=did_you_mean(key, valid) or f"Metrics: {', '.join(names)}.",
    )


def _of_spec(row: Any, key: str) -> float | None:
    """Return the GPUs that a run requests, or which part of its steps is done."""
    spec = StoredSpec(orjson.loads(row.spec))
    if key == "gpus":
        return spec.gpus
    return row.step / spec.total_steps if row.step is not None and spec.total_steps else None


def _settings(context: Context, rows: Sequence[Any], key: str) -> dict[str, Any]:
    """Return the values of a path of the config; for its last words, of the paths that end so.

    The argument of a program stands for the only setting of its name.
    """
    if not rows:
        return {}
    newest = context.store.runs.by_ids([row.id for row in rows[:_LOOKED_AT]])
    specs = specs_with_configs(context.store, newest)
    known = {path for spec in specs for path in flatten(spec)}
    paths = [key]
    if key not in known:
        paths += sorted((path for path in known if path.endswith(f".{key}")), key=_rank)
    elif not key.startswith(ARGUMENTS):
        alike = {path for path in known if path.endswith(f".{key.rpartition('.')[2]}")} - {key}
        paths += [path for path in alike if len(alike) == 1 and path.startswith(ARGUMENTS)]
    named = any(path.startswith(ARGUMENTS) for path in paths)
    values = {}
    specs_by_run = {row.id: orjson.loads(row.spec) for row in rows}
    programs = [run_id for run_id, spec in specs_by_run.items() if named and spec.get("trainer")]
    logged = context.store.events.configs(programs)
    for run_id, spec in specs_by_run.items():
        if run_id in logged:
            program = spec["trainer"]
            program["args"] = logged[run_id] | program.get("args", {})
        found = (_at(spec, path) for path in paths)
        if (value := next((one for one in found if one is not None), None)) is not None:
            values[run_id] = value
    return values


def _rank(path: str) -> tuple[bool, int]:
    return path.startswith(ARGUMENTS), len(path)


def _at(spec: Mapping[str, Any], path: str) -> Any:
    if path.startswith(("train.stages.", ARGUMENTS)):
        return flatten(spec).get(path)
    value: Any = spec
    for part in path.split("."):
        value = value.get(part) if isinstance(value, dict) else None
    return value
