"""What a run wrote, and what its curves show: events, samples, alerts, logs."""

from __future__ import annotations

from typing import Annotated, TypeVar

from fastapi import APIRouter, Path, Query, Request, Response
from fastapi.responses import StreamingResponse

from lehr.app import presenters
from lehr.app.presenters.streams import log_stream
from lehr.app.services import logs as service
from lehr.errors import NotFound
from lehr.schemas.streams import (
    AlertView,
    EventView,
    LogChunk,
    LogHits,
    LogStream,
    MediaView,
    SampleView,
)
from lehr.store.ids import attempt_id
from lehr_api.deps import FoundRun, ServicesDep, StoreDep
from lehr_api.problems import text_responses
from lehr_api.settings import MEBIBYTE
from lehr_api.tagged_route import TaggedRoute
from lehr_api.threads import LONG_READS, until_left
from lehr_log.media import MOST_BYTES, image_type
from lehr_trainer.contract.layout import MEDIA

router = APIRouter(prefix="/runs/{ref}", tags=["events"], route_class=TaggedRoute)
logs = APIRouter(prefix="/runs/{ref}/logs", tags=["logs"], route_class=TaggedRoute)

T = TypeVar("T")
LEFT_OUT = "Lehr-Left-Out"
"""A header of an answer that is not all."""

LogName = Annotated[str, Path(examples=["rank-0.log"], max_length=100)]
WhichAttempt = Annotated[
    int | None,
    Query(ge=1, le=10**6, description="Of which attempt; the newest that wrote this log."),
]


@router.get("/events")
def events(run: FoundRun, store: StoreDep, response: Response) -> list[EventView]:
    """List transitions, requests and records of the trainer, oldest first.

    Of the records, the newest 8 MiB, which is some 30,000. If there are more, the header
    ``Lehr-Left-Out`` is ``older``.
    """
    return _with_note(response, *presenters.events(store, run))


@router.get("/samples")
def samples(run: FoundRun, store: StoreDep, response: Response) -> list[SampleView]:
    """List texts that the model wrote, oldest first.

    The newest 8 MiB. If there are more, the header ``Lehr-Left-Out`` is ``older``.
    """
    return _with_note(response, *presenters.samples(store, run))


@router.get("/media")
def media(run: FoundRun, store: StoreDep, response: Response) -> list[MediaView]:
    """List images, tables, histograms and files that a program has logged, oldest first.

    Of their records, the newest 8 MiB. If there are more, ``Lehr-Left-Out`` is ``older``.
    """
    return _with_note(response, *presenters.media(store, run))


@router.get(
    "/media/{attempt}",
    response_class=Response,
    responses=text_responses(["application/octet-stream", "image/png"]),
)
def media_content(
    run: FoundRun,
    store: StoreDep,
    attempt: Annotated[int, Path(ge=1, le=10**6, examples=[1])],
    offset: Annotated[
        int, Query(ge=0, le=1 << 60, description="As the list has it.", examples=[0])
    ],
    size: Annotated[
        int, Query(ge=1, le=MOST_BYTES, description="As the list has it.", examples=[8192])
    ],
) -> Response:
    """Return the content of one of them: an image, or bytes to download (a table and a histogram
    are JSON).
    """
    content = store.streams.read(attempt_id(run.id, attempt), MEDIA, offset, size)
    if len(content) < size:
        raise NotFound(f"{run.id}: attempt {attempt} has no bytes {offset:,} to {offset + size:,}.")
    kind = image_type(content)
    headers = {"Content-Security-Policy": "sandbox; default-src 'none'"}
    if kind is None:
        headers["Content-Disposition"] = "attachment"
    return Response(content, media_type=kind or "application/octet-stream", headers=headers)


def _with_note(response: Response, found: list[T], whole: bool) -> list[T]:
    if not whole:
        response.headers[LEFT_OUT] = "older"
    return found


@router.get("/alerts")
def alerts(run: FoundRun, services: ServicesDep) -> list[AlertView]:
    """Return the alerts of the run's curves so far. Warnings of its trainer are among its
    events.
    """
    return [
        AlertView.model_validate(alert, from_attributes=True)
        for alert in services.presenter.runs.alerts(run)
    ]


@logs.get("")
def list_logs(run: FoundRun, store: StoreDep) -> list[LogStream]:
    return [log_stream(log) for log in store.logs.of_run(run.id)]


@logs.get("/{name}")
def read_log(
    run: FoundRun,
    store: StoreDep,
    name: LogName,
    attempt: WhichAttempt = None,
    offset: Annotated[int, Query(ge=0, le=1 << 60, description="In bytes.")] = 0,
    limit: Annotated[
        int, Query(ge=1, le=4 * MEBIBYTE, description="The most bytes to answer with.")
    ] = MEBIBYTE >> 2,
    tail: Annotated[
        int | None,
        Query(ge=1, le=100_000, description="The last so many lines, instead of an offset."),
    ] = None,
) -> LogChunk:
    """Read text from an offset; continue from ``next_offset`` until ``ended``."""
    return service.read_log(store, run, name, attempt, offset=offset, limit=limit, tail=tail)


@logs.get(
    "/{name}/text",
    response_class=StreamingResponse,
    responses=text_responses(["text/plain"]),
)
def download_log(
    run: FoundRun,
    store: StoreDep,
    name: LogName,
    attempt: WhichAttempt = None,
) -> StreamingResponse:
    """Download a whole log as a text file."""
    number = service.attempt_with_log(store, run, name, attempt)
    return StreamingResponse(
        service.whole_log(store, run, name, number),
        media_type="text/plain; charset=utf-8",
        headers={"Content-Disposition": f'attachment; filename="{run.id}-{number}-{name}"'},
    )


@logs.get("/{name}/search")
async def search_log(
    run: FoundRun,
    store: StoreDep,
    request: Request,
    name: LogName,
    text: Annotated[
        str,
        Query(
            min_length=1,
            max_length=1000,
            description="What a line must contain; case does not matter.",
            examples=["error"],
        ),
    ],
    attempt: WhichAttempt = None,
    offset: Annotated[int, Query(ge=0, le=1 << 60, description="Search from this byte on.")] = 0,
    limit: Annotated[int, Query(ge=1, le=10_000, description="The most lines.")] = 1000,
) -> LogHits:
    """Search a log: lines that contain a text, each with its offset."""
    return await until_left(
        request,
        LONG_READS,
        lambda stopped: service.search_log(
            store, run, name, attempt, text, offset=offset, limit=limit, stopped=stopped
        ),
    )
