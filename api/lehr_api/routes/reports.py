"""Reports: a run, sweep or rollout as one HTML page that makes no request, to send or print."""

from __future__ import annotations

from functools import partial
from typing import Annotated

from anyio import to_thread
from fastapi import APIRouter, Path, Request
from starlette.responses import HTMLResponse, StreamingResponse

from lehr.app.services import code
from lehr.app.services.bundle import open_bundle, write_bundle
from lehr.app.services.report import report_of
from lehr.base.access import Role
from lehr.base.bundle import SUFFIX
from lehr.schemas.runs import Opened
from lehr_api.auth import needs
from lehr_api.deps import ServicesDep
from lehr_api.problems import problem_responses, text_responses
from lehr_api.threads import LONG_READS, SUBMISSIONS

router = APIRouter(prefix="/reports", tags=["runs"])
bundles = APIRouter(prefix="/bundles", tags=["runs"], dependencies=[needs(Role.RESEARCHER)])
"""Reports with their evidence: code, too, which viewers do not read."""
_HTML = text_responses("text/html", 409)
_BODY = {"content": {"text/html": {"schema": {"type": "string", "format": "binary"}}}}
Ref = Annotated[
    str,
    Path(
        description="Id or name of a run, sweep or rollout.", examples=["lr-grid"], max_length=100
    ),
]


@router.get("/{ref}", response_class=HTMLResponse, responses=_HTML)
@LONG_READS.runs
def report(ref: Ref, services: ServicesDep) -> HTMLResponse:
    """Return a page with result, curves, cost, config and provenance."""
    item, html = report_of(services, ref)
    # Text of users is escaped; the sandbox would stop a script even so.
    headers = {
        "Content-Disposition": f'inline; filename="{item.id}.html"',
        "Content-Security-Policy": "sandbox; frame-ancestors 'none'",
    }
    return HTMLResponse(html, headers=headers)


@bundles.get("/{ref}", response_class=StreamingResponse, responses=_HTML)
@LONG_READS.runs
def download(ref: Ref, services: ServicesDep) -> StreamingResponse:
    """Return a report, and after it spec, code, streams and record of its runs as a zip archive."""
    item, html = report_of(services, ref)
    file = write_bundle(services, item, html)
    headers = {"Content-Disposition": f'attachment; filename="{item.name}{SUFFIX}"'}
    pieces = iter(partial(file.read, 1 << 20), b"")
    return StreamingResponse(pieces, media_type="text/html", headers=headers)


@bundles.put("", responses=problem_responses(409), openapi_extra={"requestBody": _BODY})
async def send(request: Request, services: ServicesDep) -> Opened:
    """Record the runs of such a file, of any server; nothing is queued. Idempotent."""
    with code.draft(services) as draft:
        with draft.open("xb", buffering=0) as file:
            async for piece in request.stream():
                await to_thread.run_sync(code.append, services, file, piece)
        return await to_thread.run_sync(open_bundle, services, draft, limiter=SUBMISSIONS.limiter())
