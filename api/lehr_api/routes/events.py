"""Events of a run, and samples of its model."""

from __future__ import annotations

from fastapi import APIRouter

from lehr import presenters
from lehr.schemas.streams import EventView, SampleView
from lehr_api.deps import FoundRun, StoreDep
from lehr_api.etag import TaggedRoute
from lehr_api.responses import problem_responses

router = APIRouter(prefix="/runs/{ref}", tags=["events"], route_class=TaggedRoute)


@router.get("/events", responses=problem_responses(404))
def events(run: FoundRun, store: StoreDep) -> list[EventView]:
    """List transitions, requests and records of the trainer, oldest first."""
    return presenters.events(store, run)


@router.get("/samples", responses=problem_responses(404))
def samples(run: FoundRun, store: StoreDep) -> list[SampleView]:
    return presenters.samples(store, run)
