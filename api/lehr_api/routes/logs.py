"""Logs of a run: a list, and their text by offset."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Annotated

from fastapi import APIRouter, Path, Query
from fastapi.responses import StreamingResponse

from lehr.errors import NotFound, nearest
from lehr.presenters.streams import log_chunk, log_stream
from lehr.schemas.streams import LogChunk, LogHit, LogHits, LogStream
from lehr.store import Store
from lehr.store.ids import attempt_id
from lehr.store.tables import RunRow
from lehr_api.deps import FoundRun, StoreDep
from lehr_api.etag import TaggedRoute
from lehr_api.responses import problem_responses, text_responses
from lehr_api.settings import MEBIBYTE

router = APIRouter(prefix="/runs/{ref}/logs", tags=["logs"], route_class=TaggedRoute)

LogName = Annotated[str, Path(examples=["rank-0.log"], max_length=100)]
WhichAttempt = Annotated[
    int | None,
    Query(ge=1, le=10**6, description="Of which attempt; the newest that wrote this log."),
]


@router.get("", responses=problem_responses(404))
def list_logs(run: FoundRun, store: StoreDep) -> list[LogStream]:
    return [log_stream(log) for log in store.logs.of_run(run.id)]


@router.get("/{name}", responses=problem_responses(404))
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
    which = attempt_id(run.id, _attempt_with_log(store, run, name, attempt))
    if tail is not None:
        return log_chunk(store.logs.tail(which, name, tail))
    return log_chunk(store.logs.read(which, name, offset, limit))


@router.get(
    "/{name}/text",
    response_class=StreamingResponse,
    responses=text_responses(["text/plain"], 404),
)
def download_log(
    run: FoundRun,
    store: StoreDep,
    name: LogName,
    attempt: WhichAttempt = None,
) -> StreamingResponse:
    """Download a whole log as a text file."""
    number = _attempt_with_log(store, run, name, attempt)
    headers = {"Content-Disposition": f'attachment; filename="{run.id}-{number}-{name}"'}
    return StreamingResponse(
        _whole(store, attempt_id(run.id, number), name),
        media_type="text/plain; charset=utf-8",
        headers=headers,
    )


def _whole(store: Store, which: str, name: str) -> Iterator[bytes]:
    """Yield a log to the end that it had at first: a live one grows meanwhile."""
    offset, size = 0, None
    while size is None or offset < size:
        piece = store.logs.read(which, name, offset, MEBIBYTE)
        size = piece.size_bytes if size is None else size
        if piece.next_offset <= offset:
            return
        yield piece.text.encode()
        offset = piece.next_offset


@router.get("/{name}/search", responses=problem_responses(404))
def search_log(
    run: FoundRun,
    store: StoreDep,
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
    number = _attempt_with_log(store, run, name, attempt)
    found = store.logs.search(
        attempt_id(run.id, number), name, text, offset=offset, limit=limit + 1
    )
    return LogHits(
        name=name,
        attempt=number,
        lines=[LogHit(offset=match.offset, text=match.text) for match in found[:limit]],
        next_offset=found[limit].offset if len(found) > limit else None,
    )


def _attempt_with_log(store: Store, run: RunRow, name: str, asked: int | None) -> int:
    streams = store.logs.of_run(run.id)
    wrote = [stream.attempt for stream in streams if stream.name == name]
    if not wrote:
        names = sorted({stream.name for stream in streams})
        near = nearest(name, names)
        hint = f"Did you mean {near}?   " if near else ""
        raise NotFound(
            f"{run.name} ({run.id}) has no log {name!r}.",
            hint=f"{hint}It has: {', '.join(names)}" if names else "It has written none yet.",
        )
    if asked is None:
        return max(wrote)
    if asked not in wrote:
        raise NotFound(
            f"attempt {asked} of {run.name} ({run.id}) has no log {name!r}.",
            hint=f"Attempts that wrote it: {', '.join(map(str, sorted(wrote)))}",
        )
    return asked
