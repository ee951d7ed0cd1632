"""Many runs side by side: found by what a user typed, and their curves."""

from __future__ import annotations

import math
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from itertools import chain, product
from typing import Any, Literal

from lehr.analysis.groups import far_runs
from lehr.app.presenters.series import mean_view, series_view
from lehr.app.presenters.streams import flops_per_token
from lehr.base.names import ARGUMENTS, Goal, goal_of, is_neutral_argument, is_speed
from lehr.errors import NotFound, UserError
from lehr.schemas.streams import Series
from lehr.specs.sweep import Metric
from lehr.store import Store
from lehr.store.streams.series_query import SeriesData
from lehr.store.tables import RunRow


def find_runs(store: Store, refs: Iterable[str], *, brief: bool = False) -> list[RunRow]:
    """Find a run for each different ref, in their order. An id comes before a name, as in ``find``.
    ``brief``: without their specs, as ``by_ids`` reads them.

    Raises:
        NotFound: there is no such run.
    """
    different = list(dict.fromkeys(refs))
    known = {run.id: run for run in store.runs.by_ids(different, brief=brief)}
    return [known.get(ref) or store.runs.find(ref) for ref in different]


def specs_with_configs(
    store: Store, runs: Sequence[RunRow], *, shared: bool = False
) -> list[dict[str, Any]]:
    """Return the specs, those of programs with what they gave as their config among their
    arguments. Names that change no loss are left out; ``shared``: and those that a run lacks.
    """
    configs = store.events.configs(run.id for run in runs if run.stored.program)
    args = [run.stored.program.get("args", {}) for run in runs]
    names = [{*configs.get(run.id, {}), *given} for run, given in zip(runs, args, strict=True)]
    wanted = {
        name
        for name in (set.intersection if shared else set.union)(*names)
        if not is_neutral_argument(f"{ARGUMENTS}{name}")
    }
    specs = {run.id: run.spec for run in runs}
    for run, given in zip(runs, args, strict=True):
        logged = {n: value for n, value in configs.get(run.id, {}).items() if n in wanted}
        if logged:
            specs[run.id] = run.spec | {"trainer": run.stored.program | {"args": logged | given}}
    return [*specs.values()]


CurveAxis = Literal["step", "tokens", "time", "flops"]


def read_curves(
    store: Store,
    runs: Sequence[RunRow],
    name: str,
    *,
    x_axis: CurveAxis = "step",
    first: float | None = None,
    last: float | None = None,
    **options: Any,
) -> Iterator[SeriesData]:
    """Read a metric of those of these runs that have it. FLOPs are tokens times their cost: those
    for which it is not known have no place there. ``options``: those of ``Wanted``.
    """
    if x_axis != "flops":
        ids, options = [run.id for run in runs], {**options, "first": first, "last": last}
        yield from store.series.read_many(ids, name, x_axis=x_axis, **options)
        return
    for run in runs:
        if cost := _cost(run):
            # Half a token more, so that rounding does not leave out the first or the last point.
            options["first"] = None if first is None else first / cost - 0.5
            options["last"] = None if last is None else last / cost + 0.5
            for found in store.series.read_many([run.id], name, x_axis="tokens", **options):
                yield _times(found, cost)


def _cost(run: RunRow) -> float | None:
    train = run.spec.get("train")
    return flops_per_token(train) if train else None


def _times(curve: SeriesData, cost: float) -> SeriesData:
    old = [_times(one, cost) for one in curve.superseded]
    return replace(curve, x_axis="flops", x=[tokens * cost for tokens in curve.x], superseded=old)


def goals_of(
    store: Store, runs: Iterable[RunRow], metrics: Iterable[str]
) -> dict[str, Goal | None]:
    """Return the goals of metrics: what a sweep of these runs declares, else that of the name."""
    sweeps = {run.sweep_id for run in runs if run.sweep_id is not None}
    declared = map(Metric.model_validate_json, store.sweeps.metrics(sweeps) if sweeps else ())
    return {name: goal_of(name) for name in metrics} | {one.name: one.goal for one in declared}


def far_members(
    store: Store, groups: Iterable[Sequence[RunRow]], newest: Mapping[str, Mapping[str, float]]
) -> dict[str, list[str]]:
    """Return by metric the runs that are in no mean of their group, by ``far_runs``.

    Whoever shows the mean of a group leaves them out: rows, lines and comparisons. ``newest``: by
    run and metric. A metric of speed has none: that of a slow run belongs to the mean.
    """
    groups = list(groups)
    metrics = sorted({name for values in newest.values() for name in values})
    goals = goals_of(store, chain.from_iterable(groups), metrics)
    found: dict[str, list[str]] = {}
    for name, group in product(metrics, groups):
        ends = {run.id: newest[run.id].get(name) for run in group}
        if not is_speed(name) and (out := far_runs(ends, goals[name])):
            found.setdefault(name, []).extend(out)
    return found


def newest_values(
    store: Store, run_ids: Iterable[str], metrics: Collection[str] | None
) -> dict[str, dict[str, float]]:
    """Return the newest value of each of these metrics (or of all) by run."""
    latest = store.series.latest([*run_ids], metrics)
    return {run: {name: at.value for name, at in its.items()} for run, its in latest.items()}


MOST_POINTS = 2_000_000  # Of one answer: about 60 MB, and several times that while it is made.


def curves_of_runs(
    store: Store,
    refs: Sequence[str],
    names: Sequence[str],
    *,
    firsts: Sequence[float] = (),
    x_axis: CurveAxis = "step",
    digits: int | None = None,
    ranges: bool = True,
    **options: Any,
) -> list[Series]:
    """Return the curves of these metrics, downsampled, in the order of runs and metrics.

    A run without one of the metrics has no curve of it. ``firsts`` is where the curves begin: one
    x for all runs, or one for each. Several refs joined by commas are one curve, their mean.
    ``digits``: to round the values to; ``ranges``: whether buckets have theirs; ``options``: others
    of ``Wanted``.

    Raises:
        NotFound: there is no such run.
        UserError: ``firsts`` has neither one value nor one for each run, or the answer would have
            more than ``MOST_POINTS``, of more than one curve.
    """
    if len(firsts) not in {0, 1, len(refs)}:
        raise UserError(
            f"from has {len(firsts)} values for {len(refs)} runs: give one, or one for each run."
        )
    begins: list[float | None] = [*firsts] if firsts else [None]
    starts = dict(zip(refs, begins * len(refs) if len(begins) == 1 else begins, strict=True))
    groups = {ref: ref.split(",") for ref in starts}
    every = list(dict.fromkeys(chain.from_iterable(groups.values())))
    by_ref = dict(zip(every, find_runs(store, every, brief=x_axis != "flops"), strict=True))
    found: list[Series] = []
    total = 0
    for ref, first in starts.items():
        runs = {run.id: run for run in map(by_ref.__getitem__, groups[ref])}
        if x_axis == "flops" and len({_cost(run) for run in runs.values()}) > 1:
            continue  # At a step its members are at different places of the axis.
        several = len(groups[ref]) > 1
        ends = newest_values(store, runs, names) if several else {}
        far = far_members(store, [[*runs.values()]], ends)
        for name in dict.fromkeys(names):
            curves = []
            members = [*runs.values()]
            for curve in read_curves(store, members, name, x_axis=x_axis, first=first, **options):
                curves.append(curve)
                total += len(curve.x)
                if total > MOST_POINTS and len(runs) * len(refs) * len(names) > 1:
                    raise UserError(
                        f"the answer would have more than {MOST_POINTS:,} points.",
                        hint="Ask for fewer metrics, runs or points at once, or export the run.",
                    )
            if curves and not several:
                without = {} if ranges else {"low": None, "high": None}
                found.append(series_view(curves[0], digits, **without))
            out = {run_id: runs[run_id].name for run_id in far.get(name, ())}
            there = [one for one in curves if one.step and one.run_id not in out]
            if there and several:
                ended = [runs[one.run_id].ended_at is not None for one in there]
                broken = {run for run, its in ends.items() if not math.isfinite(its.get(name, 0.0))}
                found.append(mean_view(there, ended, digits, out, broken))
    return found


def curves_of_run(
    store: Store, run: RunRow, names: Sequence[str], *, x_axis: CurveAxis, **options: Any
) -> list[Series]:
    """Return the curves of a run, as ``curves_of_runs`` does.

    Raises:
        NotFound: it has no such metric, or a token's cost is not known.
        UserError: the answer would have more than ``MOST_POINTS``, of more than one metric.
    """
    if x_axis == "flops" and _cost(run) is None:
        raise NotFound(
            f"{run.name}: its FLOPs per token are not known, or changed during the run.",
            hint="Take its tokens: x=tokens",
        )
    found = curves_of_runs(store, [run.id], names, x_axis=x_axis, **options)
    for name in set(names) - {one.name for one in found}:
        store.series.read(run.id, name)  # It says which metrics the run has.
    return found
