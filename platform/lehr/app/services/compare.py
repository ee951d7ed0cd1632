"""Compare runs: how they differ, and whether the difference in outcome is more than noise."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from functools import partial
from itertools import chain
from typing import Any, Literal

from lehr.analysis.batches import DIGEST, is_measured
from lehr.analysis.compare import ComparedRun, compared_metric, flatten
from lehr.analysis.compare import compare as compare_curves
from lehr.analysis.compare import note as metric_note
from lehr.analysis.curve import Curve
from lehr.analysis.groups import GroupedRun, UnknownKey, group_names, spread
from lehr.app.presenters.runs import CORE_METRICS, finite_median
from lehr.app.services.context import Context
from lehr.app.services.many_runs import (
    far_members,
    find_runs,
    goals_of,
    newest_values,
    read_curves,
    specs_with_configs,
)
from lehr.base.names import goal_of, task_of
from lehr.control.lifecycle import RunState
from lehr.errors import NotFound, UserError, did_you_mean
from lehr.schemas.comparisons import ComparisonView, RunGroupView
from lehr.schemas.runs import RunValuesView
from lehr.store import Store
from lehr.store.streams.series import MetricSummary
from lehr.store.tables import RunRow

CompareAxis = Literal["step", "tokens", "time", "flops", "end"]
ComparedPoints = list[tuple[float, float]]
_SPEEDS = ("tokens_per_s", "step_time_s", "mfu")


def compare_runs(
    context: Context, refs: Sequence[str], *, metric: str, x_axis: CompareAxis, by: str = ""
) -> ComparisonView:
    """Compare configs, and ``metric`` where all runs have it. The first run is the baseline.

    Without a ``metric`` it is ``val/loss``, or one that all runs have, which a note then names.
    ``by`` is what the runs are grouped by: paths of the config, metrics, ``tag``, ``tag:NAME`` or
    ``project``, with commas between them.

    Raises:
        NotFound: there is no such run, or none of the runs has the metric or what ``by`` names.
        UserError: there are fewer than two different runs.
    """
    store = context.store
    runs = list({one.id: one for one in find_runs(store, refs)}.values())
    if len(runs) < 2:
        given = ", ".join(f"{run.name} ({run.id})" for run in runs) or "none"
        raise UserError(f"a comparison needs two different runs; given: {given}.")
    infos = [store.series.metrics(run.id) for run in runs]
    logged = [[one.name for one in known] for known in infos]
    chosen = None
    if metric:
        _refuse_unknown(metric, infos)
    else:
        metric = compared_metric(logged, CORE_METRICS)
        chosen = metric_note(metric, logged)
    curves = _curves(store, runs, metric, x_axis)
    held_out = store.events.held_out((run.id for run in runs), metric)
    tasked = task_of(metric) is not None
    ids = [run.id for run in runs]
    # Of each logged step: reduced ones could not be compared.
    exact = store.series.read_many(ids, DIGEST, exact=True)
    digests = {one.run_id: Curve(one.step, one.y) for one in exact}
    speeds = {
        name: {one.run_id: finite_median(one.y) for one in store.series.read_many(ids, name)}
        for name in _SPEEDS
    }
    specs = specs_with_configs(store, runs, shared=True)
    compared = [
        ComparedRun(
            run.id,
            run.name,
            spec,
            curves.get(run.id, []),
            evaluated=metric in own if tasked else any(map(is_measured, own)),
            held_out=held_out[run.id],
            digests=digests.get(run.id, Curve((), ())),
            own_spec=run.spec,
            state=run.state,
            without=_without(run, x_axis),
            figures={
                **{name: speed.get(run.id) for name, speed in speeds.items()},
                "memory_bytes": _memory(names),
            },
        )
        for run, spec, names, own in zip(runs, specs, infos, logged, strict=True)
    ]
    goal = goals_of(store, runs, [metric])[metric]
    judge = partial(compare_curves, compared, metric=metric, goal=goal, x_axis=x_axis)
    view = judge()
    sweep_id, *others = {run.sweep_id for run in runs}
    if view.noise is None and sweep_id and not others:
        sweep = store.sweeps.get(sweep_id)
        view = judge(elsewhere=context.presenter.sweeps.noise(sweep, metric, x_axis, view.common_x))
    if by:
        view.groups = _groups(store, runs, specs, infos, view, by)
    if chosen:
        view.notes.insert(0, chosen)
    return view


def _without(run: RunRow, x_axis: CompareAxis) -> str:
    if RunState(run.state).ended:
        return f"no value ({run.state})"
    return "has not ended" if x_axis == "end" else "no value yet"


def _curves(
    store: Store, runs: Sequence[RunRow], metric: str, x_axis: CompareAxis
) -> dict[str, ComparedPoints]:
    """Read each run's first point, its last, and its last up to where all runs have points.

    A run without the metric has no points; its config can still be compared.
    """
    drawn = _points(store, runs, metric, x_axis)
    if x_axis == "end":
        over = {run.id for run in runs if RunState(run.state).ended}
        return {run: [(1.0, points[-1][1])] for run, points in drawn.items() if run in over}
    common = min((points[-1][0] for points in drawn.values()), default=0.0)
    # Of a reduced curve only the last point is certainly a logged point at its x.
    until = _points(store, runs, metric, x_axis, last=common, most=2) if drawn else {}
    return {
        run: [points[0], until[run][-1], points[-1]]
        if points[0][0] < common < points[-1][0]
        else points
        for run, points in drawn.items()
    }


def _points(
    store: Store,
    runs: Sequence[RunRow],
    metric: str,
    x_axis: CompareAxis,
    *,
    last: float | None = None,
    most: int = 500,
) -> dict[str, ComparedPoints]:
    """Read the curves of those of these runs that have points. A program that declares no tokens
    has none over them: each step would count as one.
    """
    axis = "step" if x_axis == "end" else x_axis
    placed = [run for run in runs if x_axis != "tokens" or run.stored.tokens_per_step > 1]
    curves = read_curves(store, placed, metric, x_axis=axis, points=most, last=last)
    return {one.run_id: list(zip(one.x, one.y, strict=True)) for one in curves if one.x}


def _groups(
    store: Store,
    runs: Sequence[RunRow],
    specs: Sequence[Mapping[str, Any]],
    infos: Sequence[Sequence[MetricSummary]],
    view: ComparisonView,
    by: str,
) -> list[RunGroupView]:
    newest = [{one.name: one.last for one in known} for known in infos]
    members: dict[str, list[int]] = {}
    for i, name in enumerate(groups_of(runs, specs, newest, by)):
        members.setdefault(name, []).append(i)
    ends = {
        run.id: {view.metric: values[view.metric]} if view.metric in values else {}
        for run, values in zip(runs, newest, strict=True)
    }
    out = far_members(store, [[runs[i] for i in its] for its in members.values()], ends)
    found = []
    for name, its in members.items():
        far = [run_id for run_id in out.get(view.metric, ()) if run_id in {runs[i].id for i in its}]
        results = [view.results[i] for i in its]
        counted = [one for one in results if not one.incomparable and one.run_id not in far]
        count, mean, deviation = spread(one.value for one in counted)
        of = {"count": count, "mean": mean, "deviation": deviation, "far": far}
        found.append(RunGroupView(name=name, run_ids=[one.run_id for one in results], **of))
    return found


def groups_of(
    runs: Sequence[RunRow],
    specs: Sequence[Mapping[str, Any]],
    metrics: Sequence[Mapping[str, float]],
    by: str,
) -> list[str]:
    """Return the name of each run's group.

    ``by`` has paths of the config, metrics (newest values), ``tag``, ``tag:NAME`` or ``project``,
    with commas.

    Raises:
        NotFound: none of the runs has what ``by`` names.
    """
    grouped = [
        GroupedRun(run.id, flatten(spec), run.project, run.tags, values)
        for run, spec, values in zip(runs, specs, metrics, strict=True)
    ]
    try:
        return group_names(grouped, by)
    except UnknownKey as unknown:
        known = {path for run in grouped for path in (*run.config, *run.metrics)}
        raise NotFound(
            f"by: none of these runs has a config path or a metric {str(unknown)!r}.",
            hint=did_you_mean(str(unknown), [*known, *(path.rpartition(".")[2] for path in known)])
            or "Use a path of the config, such as lr.",
        ) from None


def _refuse_unknown(metric: str, infos: Sequence[Sequence[MetricSummary]]) -> None:
    """Raise NotFound for a metric that no run has, unless trainers log it later."""
    names = sorted({one.name for known in infos for one in known})
    if metric in names or metric in CORE_METRICS or not names:
        return
    raise NotFound(
        f"none of these runs has a metric {metric!r}.",
        hint=did_you_mean(metric, names) or f"They have {', '.join(names)}.",
    )


def _memory(known: Sequence[MetricSummary]) -> float | None:
    most = {one.name: one.maximum for one in known}
    return most.get("memory/peak_bytes") or most.get("memory/rss_bytes")


REFERENCE = "reference"  # The tag of the run that others of its project are compared with.


def column_of(store: Store, runs: Sequence[Any], name: str) -> list[float | None]:
    """Return the value of a metric in each run: the newest, ``best:NAME``, or ``versus:NAME``, the
    difference to the reference run of its project at equal tokens, for which rows are needed whole.
    """
    kind, _, metric = name.partition(":")
    if kind == "best":
        best = max if goal_of(metric) == "maximize" else min
        curves = store.series.read_many([run.id for run in runs], metric, exact=True)
        known = {one.run_id: [y for y in one.y if not math.isnan(y)] for one in curves}
        return [best(known.get(run.id, ()), default=None) for run in runs]
    if kind != "versus":
        newest = newest_values(store, [run.id for run in runs], [name])
        return [newest[run.id].get(name) for run in runs]
    references = {
        project: next(iter(store.runs.page(project=project, tag=REFERENCE, limit=1).items), None)
        for project in {run.project for run in runs}
    }
    return [_versus(store, run, references[run.project], metric) for run in runs]


def _versus(store: Store, run: RunRow, reference: RunRow | None, metric: str) -> float | None:
    if reference is None or reference.id == run.id:
        return None
    pair = [run, reference]
    ends = _points(store, pair, metric, "tokens", most=2)
    common = min((points[-1][0] for points in ends.values()), default=None)
    cut = _points(store, pair, metric, "tokens", last=common, most=2)
    if len(ends) < 2 or len(cut) < 2:
        return None
    return cut[run.id][-1][1] - cut[reference.id][-1][1]


_IDENTITY = ("name", "notes", "tags", "project", "kind")  # Fields that a run's view has anyway.


def values_of_runs(
    context: Context,
    refs: Sequence[str],
    metrics: Sequence[str] = (),
    *,
    names: bool = False,
    by: str = "",
    configs: bool = True,
) -> RunValuesView:
    """Return the configs of these runs by dotted path, and their newest values of ``metrics``.

    With ``names``, also the names of all metrics that any of them has logged; with ``by``, the
    name of each run's group, as ``groups_of`` makes them. Of these groups, and of refs joined by
    commas, which runs are in no mean. Without ``configs`` these are left out.

    Raises:
        NotFound: there is no such run, or none of them has what ``by`` names.
    """
    store = context.store
    given = [ref.split(",") for ref in refs]
    every = list(dict.fromkeys(chain.from_iterable(given)))
    brief = not configs and not by
    by_ref = dict(zip(every, find_runs(store, every, brief=brief), strict=True))
    runs = list({one.id: one for one in by_ref.values()}.values())
    ids = [run.id for run in runs]
    specs = [] if brief else specs_with_configs(store, runs)
    flat = [
        {path: value for path, value in flatten(spec).items() if path not in _IDENTITY}
        for spec in (specs if configs else ())
    ]
    same: dict[str, Any] = {}
    differing: dict[str, list[Any]] = {}
    for path in dict.fromkeys(path for values in flat for path in values):
        column = [values.get(path) for values in flat]
        if len({json.dumps(value, sort_keys=True) for value in column}) == 1:
            same[path] = column[0]
        else:
            differing[path] = column
    wanted = {*metrics, *(key.partition("<")[0].strip() for key in by.split(","))}
    newest = newest_values(store, ids, None if names else wanted)
    groups = groups_of(runs, specs, [*newest.values()], by) if by else []
    members = {",".join(group): [by_ref[ref] for ref in group] for group in given if group[1:]}
    for run, group in zip(runs, groups, strict=bool(by)):
        members.setdefault(group, []).append(run)
    asked = {run: {n: v for n, v in its.items() if n in metrics} for run, its in newest.items()}
    return RunValuesView(
        runs=ids,
        same=same,
        differing=differing,
        metrics={name: column_of(store, runs, name) for name in metrics},
        metric_names=sorted(set().union(*newest.values())) if names else [],
        groups=groups,
        far=far_members(store, members.values(), asked),
    )
