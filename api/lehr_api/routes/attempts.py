"""The routes of a worker's shipper: streams by offset, heartbeats, the exit.

They require the attempt's own token. Every request is safe to repeat: bytes are placed by offset,
heartbeats and exits state facts. A superseded attempt may still send its streams. The answer
reports that it is fenced, and it stops.
"""

from __future__ import annotations

import re
from typing import Annotated, Any, Literal

from anyio import to_thread
from fastapi import APIRouter, Depends, Header, Path, Query, Request
from pydantic import Field
from starlette.responses import FileResponse, JSONResponse, Response

from lehr import __version__
from lehr.app.services import code as capsules
from lehr.app.services.checkpoints import record_copies
from lehr.control.reconcile import StopLevel
from lehr.errors import OffsetMismatch, UserError
from lehr.schemas.base import Health
from lehr.store.records.checkpoints import CopyReport
from lehr_api.auth import needs
from lehr_api.deps import AttemptId, ServicesDep, StoreDep
from lehr_api.problems import (
    OffsetProblem,
    TooLarge,
    WrongProtocol,
    described_problem,
    problem_responses,
    respond,
    text_responses,
)
from lehr_api.services import Services
from lehr_api.threads import WORKERS
from lehr_trainer.configs.base import Documented
from lehr_trainer.contract.orders import Orders

PROTOCOL = 1
"""Version of the attempt protocol. Shims outlive upgrades, so the previous one is supported."""
OLDEST_PROTOCOL = 1
STREAM = re.compile(
    r"events\.jsonl|media\.bin|(launcher|hang)(-[0-9]{1,4})?\.log|rank-[0-9]{1,5}\.log"
)


async def speaks_our_protocol(
    response: Response,
    protocol: Annotated[
        str | None,
        Header(
            alias="Lehr-Protocol",
            description="The version of the protocol that the worker uses.",
            examples=[str(PROTOCOL)],
        ),
    ] = None,
) -> None:
    response.headers["Lehr-Protocol"] = str(PROTOCOL)
    if protocol is None or not re.fullmatch(r"[0-9]{1,4}", protocol):
        raise WrongProtocol(
            "the header Lehr-Protocol is missing.",
            hint=f"This server uses version {PROTOCOL}.",
        )
    if not OLDEST_PROTOCOL <= int(protocol) <= PROTOCOL:
        raise WrongProtocol(
            f"this server does not support version {protocol} of the attempt protocol.",
            hint=f"It supports {OLDEST_PROTOCOL} to {PROTOCOL}.",
        )


router = APIRouter(
    prefix="/attempts/{attempt_id}",
    tags=["attempts"],
    dependencies=[needs(None), Depends(speaks_our_protocol)],
    responses=problem_responses(400, 404),
)

StreamName = Annotated[
    str,
    Path(
        description="`events.jsonl`, `media.bin`, `rank-<r>.log`, `launcher.log` or `hang.log`.",
        examples=["events.jsonl"],
        max_length=64,
    ),
]
Sizes = Annotated[
    dict[str, Annotated[int, Field(ge=0, le=1 << 60)]],
    Field(max_length=10_000, examples=[{"events.jsonl": 8192, "rank-0.log": 512}]),
]
NodeRank = Annotated[int, Field(ge=0, le=10_000)]


class Appended(Documented):
    offset: int
    """The end of the stream now: continue from there."""


class Offsets(Documented):
    offsets: dict[str, int]
    """Stored bytes, by stream."""
    crc32: dict[str, int] = {}
    """Of the stored bytes, by stream; -1 where it is not known."""


class HeartbeatMessage(Documented):
    boot_id: Annotated[str, Field(max_length=100)] = ""
    """Boot id of the node's kernel: another one means that the node restarted."""
    pid: int | None = None
    """The shim's."""
    node_rank: NodeRank = 0
    """The part of a gang that sends this."""
    sizes: Sizes = {}
    """Bytes written so far, by stream."""
    shorter: Sizes = {}
    """Bytes of streams whose files have become shorter than what was sent, each once."""
    launcher_alive: bool = True
    step: Annotated[int, Field(ge=0, le=1 << 60)] | None = None
    copying: bool = False
    """A checkpoint of a program is being copied: a missing step is no stall."""
    elapsed_s: Annotated[float, Field(ge=0, allow_inf_nan=False)] | None = None
    """Seconds since its launch, by its node's clock."""


class HeartbeatAnswer(Documented):
    orders: Orders
    fenced: bool
    """The run has a newer attempt, or should have none: stop."""
    interval_s: float
    """Seconds until the next heartbeat: more when many attempts are live."""
    send_s: float
    """Seconds between two looks for new data to send: more when many attempts are live."""
    stop_level: StopLevel | None = None
    """The stop level for its processes, if orders were not enough."""
    stop_reason: str | None = None


class ExitMessage(Documented):
    exit: dict[str, Any] = Field(
        examples=[{"code": 0, "signal": None, "ended_at": 1_760_000_900.0, "reason": "exited"}]
    )
    """exit.json. Invalid parts are dropped, and named in the record."""
    node_rank: NodeRank = 0
    sizes: Sizes = {}
    """Final bytes, by stream."""


class ExitAnswer(Documented):
    closed: bool
    """All bytes are stored: this part of the attempt is complete."""
    offsets: dict[str, int]
    """Stored bytes, by stream: send the rest, then the exit again."""


class CopyNews(Documented):
    path: Annotated[str, Field(max_length=200)] = Field(
        examples=["attempt-1/checkpoints/step-00000250"]
    )
    """The checkpoint's folder, relative to the run directory: of this attempt or an earlier one."""
    url: Annotated[str, Field(max_length=2000)] = Field(
        examples=["s3://bucket/prefix/k3f9x2ab/attempt-1/checkpoints/step-00000250"]
    )
    """The URL of the spec's `checkpoints.upload`, then the run's id and the path."""
    state: Literal["uploading", "there", "failed", "removed"]
    error: Annotated[str, Field(max_length=2000)] | None = None


class CopiesReport(Documented):
    copies: list[CopyNews] = Field(
        max_length=10_000,
        examples=[
            [
                {
                    "path": "attempt-1/checkpoints/step-00000250",
                    "url": "s3://bucket/prefix/k3f9x2ab/attempt-1/checkpoints/step-00000250",
                    "state": "there",
                }
            ]
        ],
    )
    """Copies whose state changed, or that are new to the server."""


class CopiesAnswer(Documented):
    unknown: list[str]
    """Not registered yet: report them again."""
    remove: list[str]
    """Copies that retention no longer keeps: remove them, and report it."""


_APPEND = {
    **problem_responses(429),
    409: described_problem(
        "The piece does not begin where the stream ends; `offset` is that position.",
        OffsetProblem,
    ),
}


@router.put(
    "/streams/{name}",
    response_model=Appended,
    responses=_APPEND,
    openapi_extra={
        "requestBody": {
            "required": True,
            "content": {
                "application/octet-stream": {"schema": {"type": "string", "format": "binary"}}
            },
        }
    },
)
async def append(
    request: Request,
    services: ServicesDep,
    attempt_id: AttemptId,
    name: StreamName,
    offset: Annotated[int, Query(ge=0, le=1 << 60, examples=[4096])],
) -> Response:
    """Append a piece of a stream, at most 1 MiB; bytes are on disk when this answers."""
    if not STREAM.fullmatch(name):
        raise UserError(
            f"{name!r} is not a stream of an attempt.",
            hint="There are events.jsonl, media.bin, launcher.log, hang.log and rank-<r>.log.",
        )
    services.intake.check()
    try:
        end = await append_piece(services, attempt_id, name, offset, await request.body())
    except OffsetMismatch as error:
        return mismatch_response(error)
    return JSONResponse({"offset": end}, headers={"Lehr-Protocol": str(PROTOCOL)})


async def append_piece(
    services: Services, attempt_id: str, name: str, offset: int, data: bytes
) -> int:
    """Append a piece of a stream; return the new end of the stream once it is on disk.

    Raises:
        TooLarge: the piece is larger than the limit.
        Busy: too many pieces wait.
        OffsetMismatch: the stream ends elsewhere.
    """
    if len(data) > services.settings.chunk_limit:
        raise TooLarge(
            f"the piece has {len(data):,} bytes; at most {services.settings.chunk_limit:,} are "
            "allowed."
        )
    streams = services.store.streams
    if not streams.is_open(attempt_id):
        await to_thread.run_sync(streams.require_open, attempt_id)
    end = await services.intake.run(
        len(data), lambda answer: streams.begin_append(attempt_id, name, offset, data, answer)
    )
    if data:
        streams.publish(attempt_id, name, end)
    return end


def mismatch_response(error: OffsetMismatch) -> Response:
    """Answer with the end of the stream, from which the sender goes on."""
    problem = OffsetProblem(
        title="Conflict",
        status=409,
        detail=error.message,
        code=error.code,
        offset=error.expected,
    )
    return respond(problem, {"Lehr-Protocol": str(PROTOCOL)})


@router.get("/streams")
@WORKERS.runs
def offsets(attempt_id: AttemptId, store: StoreDep) -> Offsets:
    """Return the offsets to continue from, and the checksums of what is before, by stream."""
    streams = store.streams.of_attempt(attempt_id)
    return Offsets(
        offsets={one.name: one.size for one in streams},
        crc32={one.name: one.crc32 for one in streams},
    )


@router.post("/heartbeat")
@WORKERS.runs
def heartbeat(
    report: HeartbeatMessage, attempt_id: AttemptId, services: ServicesDep
) -> HeartbeatAnswer:
    """Record a heartbeat; the answer contains the orders."""
    answer = services.dispatcher.on_heartbeat(attempt_id, report.model_dump())
    return HeartbeatAnswer.model_validate(answer)


@router.post("/exit")
@WORKERS.runs
def exited(report: ExitMessage, attempt_id: AttemptId, services: ServicesDep) -> ExitAnswer:
    """Record the exit of an attempt. It closes once all its bytes are stored."""
    return ExitAnswer.model_validate(services.dispatcher.on_exit(attempt_id, report.model_dump()))


@router.get("/code", response_class=FileResponse, responses=text_responses("application/x-tar"))
@WORKERS.runs
def code(attempt_id: AttemptId, services: ServicesDep) -> FileResponse:
    """Return the capsule that the attempt trains with."""
    run = services.store.runs.get(services.store.attempts.get(attempt_id).run_id)
    file = capsules.path(services, capsules.of_run(services, run))
    return FileResponse(file, media_type="application/x-tar")


@router.post("/copies")
@WORKERS.runs
def copies(report: CopiesReport, attempt_id: AttemptId, store: StoreDep) -> CopiesAnswer:
    """Record copies of checkpoints that were made, failed or were removed; the answer lists
    those to remove.
    """
    news = [CopyReport(one.path, one.url, one.state, one.error) for one in report.copies]
    unknown, superfluous = record_copies(store, attempt_id, news)
    return CopiesAnswer(unknown=unknown, remove=superfluous)


server = APIRouter(tags=["server"])


@server.get("/health", dependencies=[needs(None)], openapi_extra={"security": []})
async def health() -> Health:
    """Answer without a token, as soon as the server listens."""
    return Health(version=__version__, protocol=PROTOCOL)
