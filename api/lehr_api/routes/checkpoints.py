"""Checkpoints of a run: list, verify, download, delete."""

from __future__ import annotations

import re
from typing import Annotated
from urllib.parse import quote

from fastapi import APIRouter, Body, Header, Path, Query
from starlette.requests import Request
from starlette.responses import Response, StreamingResponse

from lehr.app import presenters
from lehr.app.services import checkpoints as service
from lehr.errors import UserError
from lehr.schemas.checkpoints import (
    CheckpointDeletion,
    CheckpointFiles,
    CheckpointVerdict,
    CheckpointView,
)
from lehr_api.deps import ChangedRun, FoundRun, ServicesDep, StoreDep
from lehr_api.problems import (
    described_problem,
    problem_response,
    problem_responses,
    text_responses,
)
from lehr_api.tagged_route import TaggedRoute
from lehr_api.threads import VERIFICATIONS, until_left
from lehr_trainer.contract.records import Evaluation

router = APIRouter(prefix="/runs/{ref}/checkpoints", tags=["checkpoints"], route_class=TaggedRoute)

_RANGE = re.compile(r"bytes=([0-9]{1,18})?-([0-9]{1,18})?")

EVALUATION = {"time": 0, "step": 250, "tokens": 512000, "values": {"task/own/accuracy": 0.5}}
StepPath = Annotated[int, Path(ge=0, le=1 << 60, description="The checkpoint's.", examples=[250])]
AttemptQuery = Annotated[
    int | None,
    Query(ge=1, le=10**6, description="Of which attempt; the newest that saved at this step."),
]


@router.get("")
def checkpoints(run: FoundRun, store: StoreDep) -> list[CheckpointView]:
    """List checkpoints by step. A removed one stays listed, with ``removed_at``."""
    return presenters.checkpoints(store, run)


@router.post("/{step}/verify")
async def verify(
    run: FoundRun,
    services: ServicesDep,
    request: Request,
    step: StepPath,
    attempt: AttemptQuery = None,
) -> CheckpointVerdict:
    """Read the checkpoint completely, in every location that the server can reach, and compare
    it with its manifest. Takes as long as reading takes; two are read at once, others wait.
    """
    return await until_left(
        request,
        VERIFICATIONS,
        lambda stopped: service.verify(services, run, step, attempt, stopped),
    )


@router.post("/{step}/evaluations")
def evaluation(
    run: ChangedRun,
    made: Annotated[Evaluation, Body(examples=[EVALUATION])],
    services: ServicesDep,
    step: StepPath,
    attempt: AttemptQuery = None,
) -> Evaluation:
    """Add the values of tasks on which the checkpoint was evaluated to the run's curves, once."""
    return service.record_evaluation(services, run, step, attempt, made)


@router.get("/{step}/files", responses=problem_responses(409))
def files(
    run: FoundRun, services: ServicesDep, step: StepPath, attempt: AttemptQuery = None
) -> CheckpointFiles:
    """Return the files of a checkpoint: download each, then `manifest.json`."""
    return service.files(services, run, step, attempt)


@router.get(
    "/{step}/files/{name}",
    response_class=StreamingResponse,
    responses={
        **text_responses("application/octet-stream", 409),
        416: described_problem("The file ends before the part begins."),
    },
)
def download(
    run: FoundRun,
    services: ServicesDep,
    step: StepPath,
    name: Annotated[str, Path(max_length=200, examples=["model.safetensors"])],
    attempt: AttemptQuery = None,
    part: Annotated[
        str | None,
        Header(alias="Range", description="A part, as `bytes=0-1023`.", max_length=100),
    ] = None,
) -> Response:
    """Download a file, from the run directory or from its copy; a part of it by `Range`."""
    return _file_response(service.open_file(services, run, step, attempt, name), part)


@router.get("/{step}/deletion")
def deletion(
    run: FoundRun, services: ServicesDep, step: StepPath, attempt: AttemptQuery = None
) -> CheckpointDeletion:
    """Return what deleting the checkpoint would free; deletes nothing."""
    return service.estimate_checkpoint_deletion(services, run, step, attempt)


@router.delete("/{step}", responses=problem_responses(409))
def delete(
    run: ChangedRun, services: ServicesDep, step: StepPath, attempt: AttemptQuery = None
) -> CheckpointDeletion:
    """Delete one checkpoint and its copy. Rejected while a run still needs it."""
    return service.delete_checkpoint(services, run, step, attempt)


def _file_response(file: service.CheckpointFile, part: str | None) -> Response:
    """Send the file or the part that a ``Range`` header names (RFC 9110, 14). Closes it.

    Raises:
        UserError: ``part`` is not one part of a file.
    """
    try:
        span = _span(part, file.size)
    except UserError:
        file.close()
        raise
    if span is None:
        file.close()
        detail = f"{file.name} has {file.size:,} bytes; {part} asks for others."
        return problem_response(416, detail, headers={"Content-Range": f"bytes */{file.size}"})
    first, count = span
    headers = {
        "Accept-Ranges": "bytes",
        "ETag": f'"{file.sha256}"',
        "Cache-Control": "private, no-cache",
        "Content-Disposition": _attachment(file.name),
        "Content-Length": str(count),
    }
    if part is not None:
        headers["Content-Range"] = f"bytes {first}-{first + count - 1}/{file.size}"
    return StreamingResponse(
        file.read(first, count),
        200 if part is None else 206,
        headers,
        media_type="application/octet-stream",
    )


def _attachment(name: str) -> str:
    """Return the header for saving a file (RFC 6266; names of other alphabets: RFC 8187)."""
    encoded = quote(name, safe="")
    if encoded == name:
        return f'attachment; filename="{name}"'
    return f"attachment; filename*=utf-8''{encoded}"


def _span(part: str | None, size: int) -> tuple[int, int] | None:
    """First byte and number of bytes; None where the file has none of them.

    Raises:
        UserError: several parts, or none that can be read.
    """
    if part is None:
        return 0, size
    match = _RANGE.fullmatch(part.strip())
    if match is None or match.group(1) is match.group(2) is None:
        raise UserError(f"Range is {part!r}; write one part, as bytes=0-1023.")
    begin, end = match.groups()
    if begin is None:
        count = min(int(end), size)
        return (size - count, count) if count else None
    first = int(begin)
    last = size - 1 if end is None else min(int(end), size - 1)
    return (first, last - first + 1) if first < size and first <= last else None
