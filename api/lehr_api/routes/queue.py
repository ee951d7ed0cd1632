"""What waits, in the order of its turn, each with the reason."""

from __future__ import annotations

from fastapi import APIRouter

from lehr.schemas import QueueEntry
from lehr_api.deps import DispatcherDep
from lehr_api.etag import TaggedRoute
from lehr_api.responses import problem_responses

router = APIRouter(tags=["cluster"], route_class=TaggedRoute)


@router.get("/queue", responses=problem_responses())
def queue(dispatcher: DispatcherDep) -> list[QueueEntry]:
    return dispatcher.queue()
