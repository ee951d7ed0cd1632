"""Metrics of a run: a list, and their curves."""

from __future__ import annotations

from typing import Annotated, Literal

from fastapi import APIRouter, Query

from lehr.presenters.streams import metric_info, series_view
from lehr.schemas.streams import MetricInfo, Series
from lehr_api.deps import FoundRun, StoreDep
from lehr_api.etag import TaggedRoute
from lehr_api.responses import problem_responses

router = APIRouter(prefix="/runs/{ref}", tags=["metrics"], route_class=TaggedRoute)


@router.get("/metrics", responses=problem_responses(404))
def metrics(run: FoundRun, store: StoreDep) -> list[MetricInfo]:
    return [metric_info(metric) for metric in store.series.metrics(run.id)]


@router.get("/series", responses=problem_responses(404))
def series(
    run: FoundRun,
    store: StoreDep,
    name: Annotated[
        list[str],
        Query(
            min_length=1,
            max_length=100,
            description="A metric; may be repeated.",
            examples=[["train/loss"]],
        ),
    ],
    x: Annotated[
        Literal["step", "tokens", "time"],
        Query(description="time: seconds since the run's first point."),
    ] = "step",
    points: Annotated[
        int, Query(ge=2, le=10_000, description="Reduce to at most so many buckets.")
    ] = 500,
    exact: Annotated[bool, Query(description="Every point, as it was logged.")] = False,
    smoothing: Annotated[
        float | None, Query(ge=0, lt=1, description="Of an exponential average over all points.")
    ] = None,
    first: Annotated[
        float | None, Query(alias="from", description="From this x on.", allow_inf_nan=False)
    ] = None,
    last: Annotated[
        float | None, Query(alias="to", description="Up to this x.", allow_inf_nan=False)
    ] = None,
    superseded: Annotated[
        bool, Query(description="Also what earlier attempts logged past a later one's start.")
    ] = False,
) -> list[Series]:
    """Return curves in the requested order: downsampled, or exact."""
    return [
        series_view(
            store.series.read(
                run.id,
                one,
                x_axis=x,
                points=points,
                exact=exact,
                first=first,
                last=last,
                smoothing=smoothing,
                with_superseded=superseded,
            )
        )
        for one in dict.fromkeys(name)
    ]
