"""Runs side by side: in what they differ, and whether the difference in outcome means anything."""

from __future__ import annotations

import math
import statistics
from collections.abc import Sequence
from typing import Annotated, Literal

from fastapi import APIRouter, Query

from lehr.analysis.compare import ComparedRun
from lehr.analysis.compare import compare as compare_runs
from lehr.analysis.held_out import is_measured
from lehr.errors import NotFound, UserError, nearest
from lehr.presenters.flops import flops_per_token
from lehr.presenters.runs import CORE_METRICS
from lehr.schemas import ComparisonView, DifferenceView, RunResultView
from lehr.store import Store
from lehr.store.streams.values import MetricSummary
from lehr.store.tables import RunRow
from lehr_api.deps import StoreDep
from lehr_api.etag import TaggedRoute
from lehr_api.responses import problem_responses

CompareAxis = Literal["step", "tokens", "time", "flops"]

router = APIRouter(tags=["runs"], route_class=TaggedRoute)


def _curves(
    store: Store, runs: list[RunRow], known: list[list[MetricSummary]], metric: str, x: CompareAxis
) -> list[list[tuple[float, float]]]:
    """Each run's first point, its last, and its last where all runs have one: what a comparison
    looks at. A run without the metric has no point; it can still be compared in its config.
    """
    drawn = [
        _points(store, run, metric, x) if any(one.name == metric for one in names) else []
        for run, names in zip(runs, known, strict=True)
    ]
    common = min((points[-1][0] for points in drawn if points), default=None)
    curves = []
    for run, points in zip(runs, drawn, strict=True):
        if not points or common is None or not points[0][0] < common < points[-1][0]:
            curves.append(points)
            continue
        # Of a reduced curve only the end is surely a point of the run's own at its x.
        until = _points(store, run, metric, x, last=common, most=2)
        curves.append([points[0], until[-1], points[-1]])
    return curves


def _points(
    store: Store,
    run: RunRow,
    metric: str,
    x: CompareAxis,
    *,
    last: float | None = None,
    most: int = 500,
) -> list[tuple[float, float]]:
    """FLOPs are tokens by what one costs; a run that cannot tell has no points over them."""
    cost = flops_per_token(run.spec["train"]) if x == "flops" else 1.0
    if cost is None:
        return []
    series = store.series.read(
        run.id,
        metric,
        x_axis="tokens" if x == "flops" else x,
        points=most,
        # Half a token more, lest rounding leaves out the point that lies at the end.
        last=None if last is None else last / cost + (0.5 if x == "flops" else 0.0),
    )
    return [(at * cost, value) for at, value in zip(series.x, series.y, strict=True)]


def _known(metric: str, known: Sequence[Sequence[MetricSummary]]) -> None:
    """Raises NotFound for a metric that no run has, unless it is one that will come."""
    names = sorted({one.name for names in known for one in names})
    if metric in names or metric in CORE_METRICS or not names:
        return
    near = nearest(metric, names)
    raise NotFound(
        f"none of these runs has a metric {metric!r}.",
        hint=f"Did you mean {near}?" if near else f"They have {', '.join(names)}.",
    )


def _typical(store: Store, run: RunRow, known: Sequence[MetricSummary], name: str) -> float | None:
    """A metric's median over the run."""
    if not any(one.name == name for one in known):
        return None
    values = [y for y in store.series.read(run.id, name).y if math.isfinite(y)]
    return statistics.median(values) if values else None


def _memory(known: Sequence[MetricSummary]) -> float | None:
    most = {one.name: one.maximum for one in known}
    return most.get("memory/peak_bytes") or most.get("memory/rss_bytes")


@router.get("/compare", responses=problem_responses(404))
def compare(
    store: StoreDep,
    run: Annotated[
        list[str],
        Query(
            min_length=2,
            max_length=100,
            description="Runs by id or name, repeated; the first is the baseline.",
            examples=[["k3f9x2ab", "p8w2c4nd"]],
        ),
    ],
    metric: str = "val/loss",
    x: Annotated[CompareAxis, Query(description="What is held equal.")] = "step",
) -> ComparisonView:
    """What differs in the configs, and the metric where all runs have it.

    A metric under ``val/`` has no delta between runs of different held-out sets.
    """
    found = list({one.id: one for one in map(store.runs.find, run)}.values())
    if len(found) < 2:
        raise UserError("a comparison needs two different runs.")
    known = [store.series.metrics(one.id) for one in found]
    _known(metric, known)
    curves = _curves(store, found, known, metric, x)
    digests = store.events.held_out(one.id for one in found)
    compared = [
        ComparedRun(
            one.id,
            one.name,
            one.spec,
            curve,
            evaluated=any(is_measured(info.name) for info in names),
            held_out=digests[one.id],
        )
        for one, names, curve in zip(found, known, curves, strict=True)
    ]
    result = compare_runs(compared, metric=metric)
    return ComparisonView(
        runs=[one.id for one in found],
        metric=metric,
        x_axis=x,
        common_x=result.common_x,
        results=[
            RunResultView(
                run_id=run_.id,
                name=run_.name,
                state=run_.state,
                x=s.x,
                value=s.value,
                delta=s.delta,
                incomparable="another held-out set" if s.incomparable else None,
                held_out=digests[run_.id],
                tokens_per_s=_typical(store, run_, names, "tokens_per_s"),
                step_time_s=_typical(store, run_, names, "step_time_s"),
                mfu=_typical(store, run_, names, "mfu"),
                memory_bytes=_memory(names),
            )
            for run_, names, s in zip(found, known, result.results, strict=True)
        ],
        differences=[
            DifferenceView(path=d.path, values=list(d.values), factor=d.factor)
            for d in result.differences
        ],
        noise=result.noise,
        held_out=result.held_out.verdict,
        held_out_note=result.held_out_note,
        notes=list(result.notes),
    )
