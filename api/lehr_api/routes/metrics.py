"""Metrics of a run, or of many at once: a list, their curves, and files with all points."""

from __future__ import annotations

from typing import Annotated, Literal

from fastapi import APIRouter, Query
from pydantic import Field, TypeAdapter
from starlette.responses import Response, StreamingResponse

from lehr.app.presenters.streams import metric_info
from lehr.app.services.many_runs import curves_of_run, curves_of_runs, find_runs
from lehr.schemas.streams import MetricInfo, MetricsOfRun, Series
from lehr.store import Store
from lehr.store.streams import export
from lehr.store.tables import RunRow
from lehr_api.deps import FoundRun, StoreDep
from lehr_api.problems import problem_responses, text_responses
from lehr_api.tagged_route import TaggedRoute
from lehr_api.threads import LONG_READS

router = APIRouter(tags=["metrics"], route_class=TaggedRoute)
files = APIRouter(tags=["metrics"])
_SERIES = TypeAdapter(list[Series])
_JSONL = "application/x-ndjson"
_CSV = "text/csv"
_PARQUET = "application/vnd.apache.parquet"

Runs = Annotated[
    list[str],
    Query(
        min_length=1,
        max_length=200,
        description="Runs by id or name, repeated.",
        examples=[["k3f9x2ab", "p8w2c4nd"]],
    ),
]
Names = Annotated[
    list[str],
    Query(
        min_length=1,
        max_length=100,
        description="A metric; may be repeated.",
        examples=[["train/loss"]],
    ),
]
Axis = Annotated[
    Literal["step", "tokens", "time", "flops"],
    Query(description="time: seconds since the run's first point; flops: tokens times their cost."),
]
PointCount = Annotated[
    int, Query(ge=2, le=10_000, description="Reduce to at most so many buckets.")
]
Smoothing = Annotated[
    float | None, Query(ge=0, lt=1, description="Of an exponential average over all points.")
]
Last = Annotated[float | None, Query(alias="to", description="Up to this x.", allow_inf_nan=False)]
Superseded = Annotated[
    bool, Query(description="Also what earlier attempts logged past a later one's start.")
]


@router.get("/runs/{ref}/metrics")
def metrics(run: FoundRun, store: StoreDep) -> list[MetricInfo]:
    return _metrics(store, run)


@router.get("/metrics", responses=problem_responses(404))
def metrics_of_runs(store: StoreDep, run: Runs) -> list[MetricsOfRun]:
    """Return the metrics of many runs, in the requested order."""
    return [
        MetricsOfRun(run_id=one.id, metrics=_metrics(store, one)) for one in find_runs(store, run)
    ]


@router.get("/runs/{ref}/series", response_model=list[Series])
def series(
    run: FoundRun,
    store: StoreDep,
    name: Names,
    x: Axis = "step",
    points: PointCount = 500,
    exact: Annotated[bool, Query(description="Every point, as it was logged.")] = False,
    smoothing: Smoothing = None,
    first: Annotated[
        float | None, Query(alias="from", description="From this x on.", allow_inf_nan=False)
    ] = None,
    last: Last = None,
    superseded: Superseded = False,
) -> Response:
    """Return curves in the requested order: downsampled, or exact.

    An answer has at most 2,000,000 points, unless it is of one metric.
    """
    found = curves_of_run(
        store,
        run,
        name,
        firsts=() if first is None else [first],
        x_axis=x,
        points=points,
        exact=exact,
        last=last,
        smoothing=smoothing,
        with_superseded=superseded,
    )
    return _written(found)


@router.get("/series", response_model=list[Series], responses=problem_responses(404))
def series_of_runs(
    store: StoreDep,
    run: Annotated[
        list[str],
        Query(
            min_length=1,
            max_length=100,
            description="Runs by id or name, repeated; with commas between them, their mean.",
            examples=[["k3f9x2ab", "p8w2c4nd,q7m3v5xh"]],
        ),
    ],
    name: Names,
    x: Axis = "step",
    points: PointCount = 500,
    smoothing: Smoothing = None,
    first: Annotated[
        list[Annotated[float, Field(allow_inf_nan=False)]] | None,
        Query(
            alias="from",
            description="From this x on: one for all runs, or one for each in their order.",
            max_length=100,
        ),
    ] = None,
    last: Last = None,
    superseded: Superseded = False,
    digits: Annotated[
        int | None, Query(ge=2, le=17, description="Significant digits of the values.")
    ] = None,
    ranges: Annotated[
        bool, Query(description="The range of each bucket of a run's points.")
    ] = True,
) -> Response:
    """Return the curves of many runs, downsampled, in the requested order of runs and metrics.

    A run without one of the metrics has no curve of it. An answer has at most 2,000,000 points,
    with those that a mean is made of.
    """
    found = curves_of_runs(
        store,
        run,
        name,
        firsts=first or (),
        x_axis=x,
        points=points,
        last=last,
        smoothing=smoothing,
        with_superseded=superseded,
        digits=digits,
        ranges=ranges,
    )
    return _written(found)


@files.get(
    "/runs/{ref}/export",
    response_class=Response,
    responses=text_responses([_JSONL, _CSV, _PARQUET]),
)
@LONG_READS.runs
def export_metrics(
    run: FoundRun,
    store: StoreDep,
    form: Annotated[
        Literal["jsonl", "csv", "parquet"], Query(alias="format", description="Of the file.")
    ] = "jsonl",
) -> Response:
    """Export every point of every metric: one row per step, one column per metric.

    `tokens` are those trained on so far, `time` the seconds since the first point. A missing value
    is absent (jsonl), empty (csv) or null (parquet). Superseded points are left out.
    """
    made = export.table(store.series, run.id)
    headers = {"Content-Disposition": f'attachment; filename="{run.id}.{form}"'}
    if form == "parquet":
        return Response(export.parquet(made, run.id), media_type=_PARQUET, headers=headers)
    if form == "csv":
        return StreamingResponse(export.csv_lines(made), media_type=_CSV, headers=headers)
    return StreamingResponse(export.json_lines(made), media_type=_JSONL, headers=headers)


def _written(found: list[Series]) -> Response:
    """Write the answer in the thread of the handler: FastAPI would do it in the event loop."""
    return Response(_SERIES.dump_json(found, by_alias=True), media_type="application/json")


def _metrics(store: Store, run: RunRow) -> list[MetricInfo]:
    return [metric_info(metric) for metric in store.series.metrics(run.id)]
