"""What a worker's shipper says of its attempt: streams by offset, heartbeats, the exit.

Opened by the attempt's own token. Every request may be sent twice: bytes are placed by offset,
heartbeats and exits state facts. An attempt that was superseded may still hand in its bytes,
they are history; it is told that it is fenced, and stops.
"""

from __future__ import annotations

import re
from typing import Annotated, Any, Literal

from fastapi import APIRouter, Depends, Header, Path, Query, Request
from pydantic import BaseModel, ConfigDict, Field
from starlette.responses import JSONResponse, Response

from lehr.control.copy_retention import copies_at, copies_to_remove
from lehr.control.reconcile import StopLevel
from lehr.errors import OffsetMismatch, UserError
from lehr.store.records.checkpoints import CopyReport
from lehr.store.tables import RunRow
from lehr_api.deps import AttemptId, DispatcherDep, ServicesDep, StoreDep
from lehr_api.problems import OffsetProblem, TooLarge, WrongProtocol, respond
from lehr_api.responses import described_problem, problem_responses
from lehr_api.routes.health import OLDEST_PROTOCOL, PROTOCOL
from lehr_trainer.configs.train import CheckpointConfig
from lehr_trainer.contract import layout
from lehr_trainer.contract.orders import Orders

_STREAM = re.compile(r"events\.jsonl|launcher(-[0-9]{1,4})?\.log|rank-[0-9]{1,5}\.log")


async def speaks_our_protocol(
    response: Response,
    protocol: Annotated[
        str | None,
        Header(
            alias="Lehr-Protocol",
            description="The version that the worker speaks.",
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
    dependencies=[Depends(speaks_our_protocol)],
)

StreamName = Annotated[
    str,
    Path(
        description="`events.jsonl`, `rank-<r>.log` or `launcher.log`.",
        examples=["events.jsonl"],
        max_length=64,
    ),
]
Sizes = Annotated[
    dict[str, Annotated[int, Field(ge=0, le=1 << 60)]],
    Field(max_length=10_000, examples=[{"events.jsonl": 8192, "rank-0.log": 512}]),
]
NodeRank = Annotated[int, Field(ge=0, le=10_000)]


class _Answer(BaseModel):
    model_config = ConfigDict(use_attribute_docstrings=True)


class Appended(_Answer):
    offset: int
    """The stream's end now: send on from there."""


class Offsets(_Answer):
    offsets: dict[str, int]
    """Bytes held, by stream."""


class HeartbeatMessage(_Answer):
    boot_id: Annotated[str, Field(max_length=100)] = ""
    """Of the node's kernel: another one means that the node restarted."""
    pid: int | None = None
    """The shim's."""
    node_rank: NodeRank = 0
    """Which part of a gang speaks."""
    sizes: Sizes = {}
    """Bytes written so far, by stream."""
    launcher_alive: bool = True
    step: Annotated[int, Field(ge=0, le=1 << 60)] | None = None
    elapsed_s: Annotated[float, Field(ge=0, allow_inf_nan=False)] | None = None
    """Since its launch, by its node's clock."""


class HeartbeatAnswer(_Answer):
    orders: Orders
    fenced: bool
    """The run has another attempt by now, or wants none: stop."""
    interval_s: float
    """When to heartbeat again."""
    stop_level: StopLevel | None = None
    """How hard its processes are to be asked to end, where orders were not enough."""
    stop_reason: str | None = None


class ExitMessage(_Answer):
    exit: dict[str, Any] = Field(
        examples=[{"code": 0, "signal": None, "ended_at": 1_760_000_900.0, "reason": "exited"}]
    )
    """exit.json. A part that is not what it should be is dropped, and named in the record."""
    node_rank: NodeRank = 0
    sizes: Sizes = {}
    """Final bytes, by stream."""


class ExitAnswer(_Answer):
    closed: bool
    """All bytes are here: nothing more will be asked of this part of the attempt."""
    offsets: dict[str, int]
    """Bytes held, by stream: send the rest, then the exit again."""


class CopyNews(_Answer):
    path: Annotated[str, Field(max_length=200)] = Field(
        examples=["attempt-1/checkpoints/step-00000250"]
    )
    """The checkpoint's folder, relative to the run directory: of this attempt or an earlier one."""
    url: Annotated[str, Field(max_length=2000)] = Field(
        examples=["s3://bucket/prefix/k3f9x2ab/attempt-1/checkpoints/step-00000250"]
    )
    """The place that the spec's `checkpoints.upload` names, then the run's id and the path."""
    state: Literal["uploading", "there", "failed", "removed"]
    error: Annotated[str, Field(max_length=2000)] | None = None


class CopiesReport(_Answer):
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
    """Those whose state changed, or that the server did not know before."""


class CopiesAnswer(_Answer):
    unknown: list[str]
    """Not registered yet: say them again."""
    remove: list[str]
    """Copies that retention keeps no longer: remove them, and say so."""


_APPEND = {
    **problem_responses(400, 404, 413, 429),
    409: described_problem(
        "The piece does not begin where the stream ends; `offset` says where that is.",
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
    """Appends a piece of a stream, at most 1 MiB; bytes are on disk when this answers."""
    if not _STREAM.fullmatch(name):
        raise UserError(
            f"{name!r} is not a stream of an attempt.",
            hint="There are events.jsonl, launcher.log and rank-<r>.log.",
        )
    services.intake.check()
    data = await request.body()
    if len(data) > services.settings.chunk_limit:
        raise TooLarge(f"a piece is at most {services.settings.chunk_limit:,} bytes.")
    headers = {"Lehr-Protocol": str(PROTOCOL)}
    try:
        end = await services.intake.run(
            lambda: services.store.streams.append(attempt_id, name, offset, data)
        )
    except OffsetMismatch as error:
        problem = OffsetProblem(
            title="Conflict",
            status=409,
            detail=error.message,
            code=error.code,
            offset=error.expected,
        )
        return respond(problem, headers)
    return JSONResponse({"offset": end}, headers=headers)


@router.get("/streams", responses=problem_responses(400, 404))
def offsets(attempt_id: AttemptId, store: StoreDep) -> Offsets:
    """Where to go on from, by stream."""
    return Offsets(offsets=store.streams.sizes(attempt_id))


@router.post("/heartbeat", responses=problem_responses(400, 404))
def heartbeat(
    report: HeartbeatMessage, attempt_id: AttemptId, dispatcher: DispatcherDep
) -> HeartbeatAnswer:
    """The attempt lives; the answer says what is wanted of it."""
    return HeartbeatAnswer.model_validate(dispatcher.on_heartbeat(attempt_id, report.model_dump()))


@router.post("/exit", responses=problem_responses(400, 404))
def exited(report: ExitMessage, attempt_id: AttemptId, dispatcher: DispatcherDep) -> ExitAnswer:
    """The attempt's processes are gone. It closes once all its bytes are here."""
    return ExitAnswer.model_validate(dispatcher.on_exit(attempt_id, report.model_dump()))


@router.post("/copies", responses=problem_responses(400, 404))
def copies(report: CopiesReport, attempt_id: AttemptId, store: StoreDep) -> CopiesAnswer:
    """Copies of checkpoints were made, failed or were removed; the answer says which are to go."""
    attempt = store.attempts.get(attempt_id)
    run = store.runs.get(attempt.run_id)
    for place, one in enumerate(report.copies):
        _refuse_stray(run, attempt.number, f"copies[{place}]", one)
    news = [CopyReport(one.path, one.url, one.state, one.error) for one in report.copies]
    unknown = store.checkpoints.note_copies(run.id, news)
    policy = CheckpointConfig.model_validate(run.spec["train"]["checkpoint"])
    superfluous = copies_to_remove(
        store.checkpoints.copied(run.id), policy, store.checkpoints.needed_by_forks(run.id)
    )
    return CopiesAnswer(unknown=unknown, remove=superfluous)


def _refuse_stray(run: RunRow, attempt: int, field: str, one: CopyNews) -> None:
    """A copy lies where the spec says: what is recorded here is later read and removed."""
    at = layout.checkpoint_at(one.path)
    if at is None or at[0] > attempt:
        raise UserError(
            f"{field}.path is {one.path!r}; a checkpoint's is "
            f"attempt-<1 to {attempt}>/{layout.CHECKPOINTS}/step-<8 digits>."
        )
    place = copies_at(run.spec, run.id, one.path)
    if place is None:
        raise UserError(f"{field}.url is {one.url!r}; the run's spec names no place for copies.")
    if one.url != place:
        raise UserError(f"{field}.url is {one.url!r}; this copy lies at {place}.")
