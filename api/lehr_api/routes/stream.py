"""The event stream."""

from __future__ import annotations

from collections.abc import AsyncGenerator, AsyncIterator
from contextlib import aclosing
from typing import Annotated, Literal

from fastapi import APIRouter, Header, Query, Request
from starlette.concurrency import run_in_threadpool
from starlette.responses import StreamingResponse

from lehr_api import auth
from lehr_api.deps import ServicesDep
from lehr_api.logins import Person
from lehr_api.problems import text_responses
from lehr_api.services import Services

router = APIRouter(tags=["stream"])

EventKind = Literal["run", "sweep", "rollout", "metrics", "log", "cluster"]


@router.get(
    "/stream", response_class=StreamingResponse, responses=text_responses("text/event-stream", 404)
)
async def stream(
    services: ServicesDep,
    request: Request,
    run: Annotated[
        str | None, Query(description="Only what concerns this run.", max_length=100)
    ] = None,
    kind: Annotated[
        list[EventKind] | None, Query(description="Only events of these kinds.", max_length=6)
    ] = None,
    gathered: Annotated[
        bool,
        Query(
            description="Send the events that are ready together as one event `batch`, whose data "
            "is a list of [kind, data]."
        ),
    ] = False,
    last_event_id: Annotated[
        str | None, Header(description="Tolerated: after a break, read again what is shown.")
    ] = None,
) -> StreamingResponse:
    """Stream server-sent events: `hello` first, then `run`, `sweep`, `rollout`, `metrics`, `log`
    and `cluster` as they happen, each with JSON data, and a comment when nothing happens.

    Several changes of one object may come as one event, the newest. Earlier events are not
    repeated.
    """
    del last_event_id  # Nothing is repeated: every event contains the newest state.
    person: Person = request.state.person
    run_id = None if run is None else (await run_in_threadpool(services.store.runs.find, run)).id
    kinds = None if kind is None else frozenset(kind)
    events = services.hub.listen(run_id, kinds, gathered=gathered)
    return StreamingResponse(
        _while_valid(services, person, events),
        media_type="text/event-stream",
        headers={"Cache-Control": "no-store", "X-Accel-Buffering": "no"},
    )


async def _while_valid(
    services: Services, person: Person, events: AsyncGenerator[bytes]
) -> AsyncIterator[bytes]:
    """Pass the events on until the person's token or login ends.

    It is judged at each event; a heartbeat comes every few seconds.
    """
    async with aclosing(events) as open_events:
        async for piece in open_events:
            if not auth.still_valid(person, services.store.access_tokens, services.ended_logins):
                return
            yield piece
