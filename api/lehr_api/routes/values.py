"""The values of many runs side by side."""

from __future__ import annotations

from typing import Annotated

from fastapi import APIRouter, Query

from lehr.app.services.compare import values_of_runs
from lehr.schemas.runs import RunValuesView
from lehr_api.deps import ServicesDep
from lehr_api.etag import TaggedRoute
from lehr_api.responses import problem_responses

router = APIRouter(tags=["runs"], route_class=TaggedRoute)


@router.get("/values", responses=problem_responses(404))
def values(
    services: ServicesDep,
    run: Annotated[
        list[str],
        Query(
            min_length=1,
            max_length=200,
            description="Runs by id or name, repeated.",
            examples=[["k3f9x2ab", "p8w2c4nd"]],
        ),
    ],
    metric: Annotated[
        list[str] | None,
        Query(max_length=20, description="Metrics whose newest values are returned as well."),
    ] = None,
    names: Annotated[
        bool, Query(description="Return the names of all metrics that any of them has logged.")
    ] = False,
    by: Annotated[
        str,
        Query(max_length=500, description="Name the group of each run, as `by` of /compare does."),
    ] = "",
) -> RunValuesView:
    """Return the configs of runs by dotted path: what is the same in all, and what differs."""
    return values_of_runs(services, run, metric or (), names=names, by=by)
