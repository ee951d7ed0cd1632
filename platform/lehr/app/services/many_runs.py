"""Many runs side by side: found by what a user typed, and their curves."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from contextlib import suppress
from dataclasses import replace
from functools import partial
from itertools import chain
from typing import Any, Literal

from lehr.analysis.groups import far_runs
from lehr.app.presenters.series import mean_view, series_view
from lehr.app.presenters.streams import flops_per_token
from lehr.base.names import ARGUMENTS, goal_of, is_neutral_argument
from lehr.errors import NotFound, UserError
from lehr.schemas.streams import Series
from lehr.store import Store
from lehr.store.streams.series_query import SeriesData
from lehr.store.tables import RunRow


def find_runs(store: Store, refs: Iterable[str]) -> list[RunRow]:
    """Find a run for each different ref, in their order. An id comes before a name, as in ``find``.

    Raises:
        NotFound: there is no such run.
    """
    different = list(dict.fromkeys(refs))
    known = {run.id: run for run in store.runs.by_ids(different)}
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


def read_curve(
    store: Store,
    run: RunRow,
    name: str,
    *,
    x_axis: CurveAxis = "step",
    first: float | None = None,
    last: float | None = None,
    **options: Any,
) -> SeriesData:
    """Read a metric of a run, as ``store.series.read`` does. FLOPs are tokens times their cost.

    Raises:
        NotFound: it has no such metric, or a token's cost is not known.
    """
    if x_axis != "flops":
        return store.series.read(run.id, name, x_axis=x_axis, first=first, last=last, **options)
    cost = _cost(run)
    if cost is None:
        raise NotFound(
            f"{run.name}: its FLOPs per token are not known, or changed during the run.",
            hint="Take its tokens: x=tokens",
        )
    # Half a token more, so that rounding does not leave out the first or the last point.
    first = None if first is None else first / cost - 0.5
    last = None if last is None else last / cost + 0.5
    found = store.series.read(run.id, name, x_axis="tokens", first=first, last=last, **options)
    return _times(found, cost)


def _cost(run: RunRow) -> float | None:
    train = run.spec.get("train")
    return flops_per_token(train) if train else None


def _times(curve: SeriesData, cost: float) -> SeriesData:
    old = [_times(one, cost) for one in curve.superseded]
    return replace(curve, x_axis="flops", x=[tokens * cost for tokens in curve.x], superseded=old)


MOST_POINTS = 2_000_000  # Of one answer: about 60 MB, and several times that while it is made.


def curves_of_runs(
    store: Store,
    refs: Sequence[str],
    names: Sequence[str],
    *,
    firsts: Sequence[float] = (),
    x_axis: CurveAxis = "step",
    points: int = 500,
    last: float | None = None,
    smoothing: float | None = None,
    with_superseded: bool = False,
    digits: int | None = None,
    ranges: bool = True,
) -> list[Series]:
    """Return the curves of these metrics, downsampled, in the order of runs and metrics.

    A run without one of the metrics has no curve of it. ``firsts`` is where the curves begin: one
    x for all runs, or one for each. Several refs joined by commas are one curve, their mean.
    ``digits``: to round the values to; ``ranges``: whether buckets have theirs.

    Raises:
        NotFound: there is no such run.
        UserError: ``firsts`` has neither one value nor one for each run, or the answer would have
            more than ``MOST_POINTS``.
    """
    if len(firsts) not in {0, 1, len(refs)}:
        raise UserError(
            f"from has {len(firsts)} values for {len(refs)} runs: give one, or one for each run."
        )
    begins: list[float | None] = [*firsts] if firsts else [None]
    starts = dict(zip(refs, begins * len(refs) if len(begins) == 1 else begins, strict=True))
    read = partial(
        read_curve,
        store,
        x_axis=x_axis,
        points=points,
        last=last,
        smoothing=smoothing,
        with_superseded=with_superseded,
    )
    groups = [ref.split(",") for ref in starts]
    runs = find_runs(store, chain.from_iterable(groups))
    by_ref = dict(zip(dict.fromkeys(chain.from_iterable(groups)), runs, strict=True))
    found: list[Series] = []
    total = 0
    for group, first in zip(groups, starts.values(), strict=True):
        if x_axis == "flops" and len({_cost(by_ref[ref]) for ref in group}) > 1:
            continue  # At a step its members are at different places of the axis.
        for name in dict.fromkeys(names):
            members: list[tuple[RunRow, SeriesData]] = []
            for run in {by_ref[ref].id: by_ref[ref] for ref in group}.values():
                with suppress(NotFound):  # The run has no such metric.
                    members.append((run, read(run, name, first=first)))
            curves = [curve for _, curve in members]
            total += sum(len(curve.x) for curve in curves)
            if total > MOST_POINTS:
                raise _too_many("Ask for fewer runs, metrics or points at once.")
            if len(group) == 1 and curves:
                without = {} if ranges else {"low": None, "high": None}
                found.append(series_view(curves[0], digits, **without))
            elif len(group) > 1:
                latest = store.series.latest([run.id for run, _ in members], [name])
                ends = {run: its[name].value for run, its in latest.items() if its}
                out = far_runs(ends, goal_of(name))
                far = {run.id: run.name for run, _ in members if run.id in out}
                if there := [one for one in members if one[1].step and one[0].id not in far]:
                    ended = [run.ended_at is not None for run, _ in there]
                    found.append(mean_view([curve for _, curve in there], ended, digits, far))
    return found


def refuse_too_many(store: Store, run_id: str, names: Sequence[str]) -> None:
    """Refuse to read more exact points than one answer may have; one metric is always read.

    Raises:
        UserError: these metrics have more.
    """
    wanted = set(names)
    if len(wanted) > 1:
        total = sum(one.points for one in store.series.metrics(run_id) if one.name in wanted)
        if total > MOST_POINTS:
            raise _too_many(
                f"These have {total:,}. Ask for fewer metrics at once, or export the run."
            )


def _too_many(hint: str) -> UserError:
    return UserError(f"the answer would have more than {MOST_POINTS:,} points.", hint=hint)
