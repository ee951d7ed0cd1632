"""What nodes did over time, by node and by run."""

from __future__ import annotations

from typing import Annotated

from fastapi import APIRouter, Query

from lehr.schemas.system import RunSystem, SystemHistory
from lehr.services.system import node_history, run_system
from lehr_api.deps import FoundRun, ServicesDep
from lehr_api.etag import TaggedRoute
from lehr_api.responses import problem_responses
from lehr_api.routes.cluster import NodeName

router = APIRouter(tags=["cluster"], route_class=TaggedRoute)

Points = Annotated[
    int, Query(ge=2, le=10_000, description="Average neighbours until there are at most so many.")
]


@router.get("/cluster/nodes/{node}/history", responses=problem_responses(404))
def history(
    node: NodeName,
    services: ServicesDep,
    first: Annotated[
        float | None,
        Query(
            alias="from",
            description="Seconds since the epoch. Default: an hour before the end.",
            allow_inf_nan=False,
        ),
    ] = None,
    last: Annotated[
        float | None,
        Query(
            alias="to",
            description="Seconds since the epoch. Default: now.",
            allow_inf_nan=False,
        ),
    ] = None,
    points: Points = 400,
) -> SystemHistory:
    """Return a node's CPU, memory, disk, network and GPUs over time.

    The finest resolution that reaches back to the begin is used: 10 s for an hour, 1 min for a day,
    15 min for 90 days.
    """
    return node_history(services, node, first=first, last=last, points=points)


@router.get("/runs/{ref}/system", responses=problem_responses(404))
def system(
    run: FoundRun,
    services: ServicesDep,
    attempt: Annotated[
        int | None, Query(ge=1, le=1_000_000, description="Only this attempt.")
    ] = None,
    points: Points = 400,
) -> RunSystem:
    """Return what the run's nodes and GPUs did while its attempts ran."""
    return run_system(services, run, attempt=attempt, points=points)
