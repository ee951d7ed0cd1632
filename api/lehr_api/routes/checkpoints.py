"""Checkpoints of a run: list, verify, download, delete."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Annotated

from fastapi import APIRouter, Header, Path, Query
from starlette.responses import Response, StreamingResponse

from lehr import home as homes
from lehr import presenters
from lehr.checkpoints.registry import CheckpointLocations, Readable, find
from lehr.control.lifecycle import RunState
from lehr.errors import Conflict, NotFound, UserError, nearest
from lehr.schemas import (
    CheckpointDeletion,
    CheckpointFiles,
    CheckpointVerdict,
    CheckpointView,
    Problem,
)
from lehr.store.tables import CheckpointRow, RunRow
from lehr.store.records.checkpoints import CopyReport
from lehr_api import examples
from lehr_api.deps import FoundRun, ServicesDep, StoreDep
from lehr_api.etag import TaggedRoute
from lehr_api.problems import problem_response
from lehr_api.services import Services
from lehr_trainer.contract import layout

router = APIRouter(prefix="/runs/{ref}/checkpoints", tags=["checkpoints"], route_class=TaggedRoute)
_untagged = APIRouter()
"""Its answers are streamed, and have their own ETag."""

StepPath = Annotated[int, Path(ge=0, le=1 << 60, description="The checkpoint's.", examples=[250])]
AttemptQuery = Annotated[
    int | None,
    Query(ge=1, le=10**6, description="Of which attempt; the newest that saved at this step."),
]
_BEYOND = Problem(
    title="Range Not Satisfiable",
    status=416,
    detail="state.json has 812 bytes; bytes=1000- asks for others.",
    code="error",
)
_RANGE = re.compile(r"bytes=([0-9]{1,18})?-([0-9]{1,18})?")


@router.get("", responses=examples.answers(examples.CHECKPOINTS, 404))
def checkpoints(run: FoundRun, store: StoreDep) -> list[CheckpointView]:
    """List checkpoints by step. A removed one stays listed, with ``removed_at``."""
    return presenters.checkpoints(store, run)


@router.post("/{step}/verify", responses=examples.answers(examples.CHECKPOINT_VERDICT, 404))
def verify(
    run: FoundRun, services: ServicesDep, step: StepPath, attempt: AttemptQuery = None
) -> CheckpointVerdict:
    """Read the checkpoint completely, in every location that the server can reach, and compare
    it with its manifest. Takes as long as reading takes.
    """
    return _places(run, services, step, attempt).verify()


@router.get("/{step}/files", responses=examples.answers(examples.CHECKPOINT_FILES, 404, 409))
def files(
    run: FoundRun, services: ServicesDep, step: StepPath, attempt: AttemptQuery = None
) -> CheckpointFiles:
    """Return the files of a checkpoint: download each, then `manifest.json`."""
    return _places(run, services, step, attempt).files()


@_untagged.get(
    "/{step}/files/{name}",
    response_class=StreamingResponse,
    responses={
        **examples.text_answers("...", "application/octet-stream", 404, 409),
        416: examples.problem_answer("The file ends before the part begins.", _BEYOND),
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
    places = _places(run, services, step, attempt)
    found = places.readable()
    manifest = found.known.manifest
    if name == layout.MANIFEST:
        content = b"".join(found.source.read(name))
        found.source.close()
        size, digest = len(content), found.known.digest
        found = Readable(_Bytes(content), found.known)
    elif name in manifest.files:
        size, digest = manifest.files[name].size, manifest.files[name].sha256
    else:
        found.source.close()
        near = nearest(name, [*manifest.files, layout.MANIFEST])
        raise NotFound(
            f"the checkpoint at step {step:,} has no file {name!r}.",
            hint=f"Did you mean {near}?" if near else f"It has: {', '.join(manifest.files)}.",
        )
    headers = {
        "Accept-Ranges": "bytes",
        "ETag": f'"{digest}"',
        "Cache-Control": "private, no-cache",
        "Content-Disposition": f'attachment; filename="{name}"',
    }
    span = _span(part, size)
    if span is None:
        found.source.close()
        detail = f"{name} has {size:,} bytes; {part} asks for others."
        return problem_response(416, detail, headers={"Content-Range": f"bytes */{size}"})
    first, count = span
    headers["Content-Length"] = str(count)
    status = 200
    if part is not None:
        status = 206
        headers["Content-Range"] = f"bytes {first}-{first + count - 1}/{size}"
    return StreamingResponse(
        _pieces(found, name, first, count),
        status,
        headers,
        media_type="application/octet-stream",
    )


@router.get("/{step}/deletion", responses=examples.answers(examples.CHECKPOINT_DELETION, 404))
def deletion(
    run: FoundRun, services: ServicesDep, step: StepPath, attempt: AttemptQuery = None
) -> CheckpointDeletion:
    """Return what deleting the checkpoint would free; deletes nothing."""
    places = _places(run, services, step, attempt)
    weighed = places.weigh()
    why = _why_kept(run, services, places.row)
    return weighed.model_copy(
        update={"notes": [*weighed.notes, *([f"refused for now: {why}"] if why else [])]}
    )


@router.delete("/{step}", responses=examples.answers(examples.CHECKPOINT_DELETION, 404, 409))
def delete(
    run: FoundRun, services: ServicesDep, step: StepPath, attempt: AttemptQuery = None
) -> CheckpointDeletion:
    """Delete one checkpoint and its copy. Rejected while a run still needs it."""
    places = _places(run, services, step, attempt)
    row, store = places.row, services.store
    places.require_own()
    weighed = places.weigh()
    with store.transaction():
        why = _why_kept(store.runs.get(run.id), services, row)
        if why is not None:
            raise Conflict(f"the checkpoint at step {step:,} is needed: {why}.")
        # From here on nobody begins from it, whatever becomes of the removal.
        store.checkpoints.mark_removed(run.id, attempt=row.attempt, step=row.step)
    places.remove_folder()
    if places.copy_url is not None:
        places.remove_copy()
        store.checkpoints.note_copies(run.id, [CopyReport(row.path, places.copy_url, "removed")])
    return weighed.model_copy(update={"deleted": True})


def _places(run: RunRow, services: Services, step: int, attempt: int | None) -> CheckpointLocations:
    row = find(run, services.store.checkpoints.of_run(run.id), step, attempt)
    return CheckpointLocations(homes.runs_dir(services.settings.home), run, row)


def _why_kept(run: RunRow, services: Services, row: CheckpointRow) -> str | None:
    """Return why it cannot be deleted now; None when it can."""
    store, state = services.store, RunState(run.state)
    forks = store.checkpoints.pinned_by_forks(run.id, row.path)
    if forks:
        return f"{forks[0].name} ({forks[0].id}) waits to start from it"
    if state.active:
        return f"{run.name} is running and manages its own checkpoints"
    newest = max(store.checkpoints.of_run(run.id), key=lambda one: (one.attempt, one.step))
    if not state.ended and (newest.attempt, newest.step) == (row.attempt, row.step):
        return f"{run.name} is {run.state} and would resume from it"
    return None


class _Bytes:
    def __init__(self, content: bytes) -> None:
        self._content = content

    def read(self, name: str, first: int = 0, size: int | None = None) -> Iterator[bytes]:  # noqa: ARG002 - as a source has it
        yield self._content[first : None if size is None else first + size]

    def close(self) -> None:
        """Do nothing: nothing is held open."""


def _pieces(found: Readable, name: str, first: int, count: int) -> Iterator[bytes]:
    try:
        yield from found.source.read(name, first, count)
    finally:
        found.source.close()


def _span(part: str | None, size: int) -> tuple[int, int] | None:
    """Return first byte and number of bytes; None where there is nothing (RFC 9110, 14.1.2).

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


router.include_router(_untagged)
