"""Capsules: send, show, compare and download the code that trains runs."""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Annotated

from anyio import to_thread
from fastapi import APIRouter, Path, Query, Request
from starlette.responses import FileResponse

from lehr.app.services import code as service
from lehr.base.access import Role
from lehr.schemas.checkpoints import CapsuleView, CodeDiff
from lehr_api.auth import needs
from lehr_api.deps import ServicesDep
from lehr_api.problems import TooLarge, text_responses

router = APIRouter(prefix="/code", tags=["code"], dependencies=[needs(Role.RESEARCHER)])

_EXAMPLE = "4f2d5a0e9c1b7d8863a1f0c2e4b6d8fa0c1e3b5d7f9a2c4e6b8d0f1a3c5e7b90"
Digest = Annotated[
    str,
    Path(
        description="SHA-256 of the archive.",
        examples=[_EXAMPLE],
        pattern=r"^[0-9a-f]{64}$",
        max_length=64,
    ),
]
Ref = Annotated[
    str,
    Path(
        description="A capsule's digest or the beginning of one, or a run's id or name.",
        examples=["k3f9x2ab"],
        max_length=100,
    ),
]


@router.get("/{ref}")
def show(ref: Ref, services: ServicesDep) -> CapsuleView:
    """Return the files of a capsule."""
    return service.view(services, service.find(services, ref))


@router.get("/{ref}/diff")
def diff(
    ref: Ref,
    services: ServicesDep,
    other: Annotated[
        str,
        Query(description="The capsule or run to compare with.", max_length=100, examples=["p2"]),
    ],
) -> CodeDiff:
    """Return what changed from one capsule to another."""
    return service.diff(services, ref, other)


@router.get(
    "/{ref}/archive",
    response_class=FileResponse,
    responses=text_responses("application/x-tar"),
)
def download(ref: Ref, services: ServicesDep) -> FileResponse:
    """Return the capsule as a tar archive."""
    digest = service.find(services, ref)
    return FileResponse(
        service.path(services, digest),
        media_type="application/x-tar",
        filename=f"{digest[:12]}.tar",
    )


@router.put(
    "/{digest}",
    openapi_extra={
        "requestBody": {
            "required": True,
            "content": {"application/x-tar": {"schema": {"type": "string", "format": "binary"}}},
        }
    },
)
async def send(digest: Digest, request: Request, services: ServicesDep) -> CapsuleView:
    """Keep a capsule: a tar of plain files whose SHA-256 is the digest. Idempotent."""
    await to_thread.run_sync(service.refuse_if_closed, services)
    with service.draft(services) as draft:
        with draft.open("xb", buffering=0) as file:
            async for piece in _pieces(request, services.settings.capsule_limit):
                await to_thread.run_sync(service.append, services, file, piece)
        return await to_thread.run_sync(service.receive, services, draft, digest)


async def _pieces(request: Request, limit: int) -> AsyncIterator[bytes]:
    """Yield the body in pieces.

    Raises:
        TooLarge: it is larger than ``limit``.
    """
    size = 0
    async for piece in request.stream():
        size += len(piece)
        if size > limit:
            raise TooLarge(f"the capsule is larger than {limit:,} bytes, the limit.")
        yield piece
