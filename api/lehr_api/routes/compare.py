"""Compare runs: their differences, and whether the difference in outcome means anything."""

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
from lehr.schemas import ComparisonView, DifferenceView, MetricInfo, RunResultView
from lehr.store import Store
from lehr.store.tables import RunRow
from lehr_api import examples
from lehr_api.deps import StoreDep
from lehr_api.etag import TaggedRoute

CompareAxis = Literal["step", "tokens", "time", "flops"]

router = APIRouter(tags=["runs"], route_class=TaggedRoute)


_SET = "6705cb68d0c2f8f7b1e04a4d5f3f6f0a4c0f0be1d6ce5be0a8f5f1f5f0b9a3c2"
_EXAMPLE = ComparisonView(
    runs=["k3f9x2ab", "p8w2c4nd"],
    metric="val/loss",
    x_axis="step",
    common_x=400,
    results=[
        RunResultView(
            run_id="k3f9x2ab",
            name="lr-grid-2",
            state="running",
            x=400,
            value=5.204,
            delta=0.0,
            held_out=_SET,
            tokens_per_s=31_120.0,
            step_time_s=2.106,
            mfu=0.49,
            memory_bytes=61.3e9,
        ),
        RunResultView(
            run_id="p8w2c4nd",
            name="lr-grid-1",
            state="completed",
            x=400,
            value=5.912,
            delta=0.708,
            held_out=_SET,
            tokens_per_s=31_180.0,
            step_time_s=2.102,
            mfu=0.49,
            memory_bytes=61.3e9,
        ),
    ],
    differences=[DifferenceView(path="train.optimizer.lr", values=[3e-4, 1e-4], factor=True)],
    noise=None,
    held_out="same",
    notes=[],
)


def _curves(
    store: Store, runs: list[RunRow], known: list[list[MetricInfo]], metric: str, x: CompareAxis
) -> list[list[tuple[float, float]]]:
    """Return the points that a comparison needs: each run's first, its last, and its last where
    all runs have one. A run without the metric has no points, but its config is compared.
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
    """Convert points to the x axis. FLOPs are tokens times FLOPs per token; if that is unknown,
    there are no points.
    """
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


def _known(metric: str, known: Sequence[Sequence[MetricInfo]]) -> None:
    """Raise NotFound for a metric that no run has, unless it will come."""
    names = sorted({one.name for names in known for one in names})
    if metric in names or metric in CORE_METRICS or not names:
        return
    near = nearest(metric, names)
    raise NotFound(
        f"none of these runs has a metric {metric!r}.",
        hint=f"Did you mean {near}?" if near else f"They have {', '.join(names)}.",
    )


def _typical(store: Store, run: RunRow, known: Sequence[MetricInfo], name: str) -> float | None:
    """Return a metric's median over the run."""
    if not any(one.name == name for one in known):
        return None
    values = [y for y in store.series.read(run.id, name).y if math.isfinite(y)]
    return statistics.median(values) if values else None


def _memory(known: Sequence[MetricInfo]) -> float | None:
    most = {one.name: one.maximum for one in known}
    return most.get("memory/peak_bytes") or most.get("memory/rss_bytes")


@router.get("/compare", responses=examples.answers(_EXAMPLE, 404))
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
    """Compare configs, and the metric where all runs have it.

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
