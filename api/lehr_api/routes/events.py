"""Events of a run, and samples of its model."""

from __future__ import annotations

from typing import TypeVar

from fastapi import APIRouter, Response

from lehr.app import presenters
from lehr.schemas.streams import EventView, SampleView
from lehr_api.deps import FoundRun, StoreDep
from lehr_api.etag import TaggedRoute
from lehr_api.responses import problem_responses

router = APIRouter(prefix="/runs/{ref}", tags=["events"], route_class=TaggedRoute)


T = TypeVar("T")
LEFT_OUT = "Lehr-Left-Out"
"""A header of an answer that is not all."""


@router.get("/events", responses=problem_responses(404))
def events(run: FoundRun, store: StoreDep, response: Response) -> list[EventView]:
    """List transitions, requests and records of the trainer, oldest first.

    Of the records, the newest 8 MiB, which is some 30,000. If there are more, the header
    ``Lehr-Left-Out`` is ``older``.
    """
    return _with_note(response, *presenters.events(store, run))


@router.get("/samples", responses=problem_responses(404))
def samples(run: FoundRun, store: StoreDep, response: Response) -> list[SampleView]:
    """List texts that the model wrote, oldest first.

    The newest 8 MiB. If there are more, the header ``Lehr-Left-Out`` is ``older``.
    """
    return _with_note(response, *presenters.samples(store, run))


def _with_note(response: Response, found: list[T], whole: bool) -> list[T]:
    if not whole:
        response.headers[LEFT_OUT] = "older"
    return found
