"""Checkpoints of a run: list, verify, download, delete."""

from __future__ import annotations

from typing import Annotated

from fastapi import APIRouter, Header, Path, Query
from starlette.requests import Request
from starlette.responses import Response, StreamingResponse

from lehr.app import presenters
from lehr.app.services import checkpoints as service
from lehr.schemas.checkpoints import (
    CheckpointDeletion,
    CheckpointFiles,
    CheckpointVerdict,
    CheckpointView,
)
from lehr_api.byte_ranges import file_response
from lehr_api.deps import ChangedRun, FoundRun, ServicesDep, StoreDep
from lehr_api.etag import TaggedRoute
from lehr_api.responses import described_problem, problem_responses, text_responses
from lehr_api.threads import VERIFICATIONS, until_left

router = APIRouter(prefix="/runs/{ref}/checkpoints", tags=["checkpoints"], route_class=TaggedRoute)
_untagged = APIRouter()
"""Its answers are streamed, and have their own ETag."""

StepPath = Annotated[int, Path(ge=0, le=1 << 60, description="The checkpoint's.", examples=[250])]
AttemptQuery = Annotated[
    int | None,
    Query(ge=1, le=10**6, description="Of which attempt; the newest that saved at this step."),
]


@router.get("", responses=problem_responses(404))
def checkpoints(run: FoundRun, store: StoreDep) -> list[CheckpointView]:
    """List checkpoints by step. A removed one stays listed, with ``removed_at``."""
    return presenters.checkpoints(store, run)


@router.post("/{step}/verify", responses=problem_responses(404))
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


@router.get("/{step}/files", responses=problem_responses(404, 409))
def files(
    run: FoundRun, services: ServicesDep, step: StepPath, attempt: AttemptQuery = None
) -> CheckpointFiles:
    """Return the files of a checkpoint: download each, then `manifest.json`."""
    return service.files(services, run, step, attempt)


@_untagged.get(
    "/{step}/files/{name}",
    response_class=StreamingResponse,
    responses={
        **text_responses("application/octet-stream", 404, 409),
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
    return file_response(service.open_file(services, run, step, attempt, name), part)


@router.get("/{step}/deletion", responses=problem_responses(404))
def deletion(
    run: FoundRun, services: ServicesDep, step: StepPath, attempt: AttemptQuery = None
) -> CheckpointDeletion:
    """Return what deleting the checkpoint would free; deletes nothing."""
    return service.estimate_checkpoint_deletion(services, run, step, attempt)


@router.delete("/{step}", responses=problem_responses(404, 409))
def delete(
    run: ChangedRun, services: ServicesDep, step: StepPath, attempt: AttemptQuery = None
) -> CheckpointDeletion:
    """Delete one checkpoint and its copy. Rejected while a run still needs it."""
    return service.delete_checkpoint(services, run, step, attempt)


router.include_router(_untagged)
