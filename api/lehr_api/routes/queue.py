"""The queue: queued runs in order, each with the reason why it waits."""

from __future__ import annotations

from fastapi import APIRouter

from lehr.schemas import QueueEntry
from lehr_api import examples
from lehr_api.deps import DispatcherDep
from lehr_api.etag import TaggedRoute

router = APIRouter(tags=["cluster"], route_class=TaggedRoute)


@router.get("/queue", responses=examples.answers(examples.QUEUE))
def queue(dispatcher: DispatcherDep) -> list[QueueEntry]:
    return dispatcher.queue()
