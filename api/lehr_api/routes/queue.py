"""The queue: queued runs in order, each with the reason why it waits."""

from __future__ import annotations

from fastapi import APIRouter

from lehr.schemas.cluster import QueueEntry
from lehr_api.deps import ServicesDep
from lehr_api.etag import TaggedRoute
from lehr_api.responses import problem_responses

router = APIRouter(tags=["cluster"], route_class=TaggedRoute)


@router.get("/queue", responses=problem_responses())
def queue(services: ServicesDep) -> list[QueueEntry]:
    return services.cluster_views.queue()
