"""What answers look like: the examples in the OpenAPI description.

They are real views, so they cannot drift from the schema.
"""

from __future__ import annotations

from typing import Any

from pydantic import BaseModel

from lehr import __version__
from lehr.schemas import (
    AttemptView,
    CheckpointDeletion,
    CheckpointFiles,
    CheckpointVerdict,
    CheckpointView,
    ClusterView,
    Deletion,
    EventView,
    FileView,
    GpuRef,
    GpuView,
    Health,
    Latest,
    LogChunk,
    LogHit,
    LogHits,
    LogStream,
    MetricInfo,
    NodeView,
    Page,
    PlaceVerdict,
    Problem,
    QueueEntry,
    RunDetail,
    RunView,
    SampleView,
    Series,
    SweepDeletion,
    SweepDetail,
    SweepView,
    TrialView,
)
from lehr_api.problems import MEDIA_TYPE, OffsetProblem

_AT = 1_760_000_000.0
_TRAIN: dict[str, Any] = {
    "model": "tiny",
    "data": {"corpus": {"kind": "stdlib"}, "tokenizer": "byte"},
    "batch": {"sequences": 8, "sequence_length": 256},
    "steps": 1000,
    "optimizer": {"lr": 1e-3},
}
RUN_SPEC: dict[str, Any] = {"kind": "run", "name": "first-run", "train": _TRAIN}
SWEEP_SPEC: dict[str, Any] = {
    "kind": "sweep",
    "name": "lr-grid",
    "method": "grid",
    "metric": {"name": "val/loss", "goal": "minimize"},
    "parameters": {"train.optimizer.lr": {"values": [1e-4, 3e-4, 1e-3, 3e-3]}},
    "run": {"train": _TRAIN},
}
_PROVENANCE = {"git": {"commit": "9f2c1e7", "dirty": False}, "host": "n1"}

_RUN_FIELDS: dict[str, Any] = {
    "id": "k3f9x2ab",
    "name": "lr-grid-2",
    "project": "default",
    "sweep_id": "q7m2d4rt",
    "state": "running",
    "attempt": 1,
    "device": "NVIDIA H100 80GB HBM3",
    "placement": [GpuRef(node="n1", gpu=2)],
    "step": 412,
    "total_steps": 1000,
    "tokens_per_step": 65_536,
    "parameters": 755_042_304,
    "latest": {
        "train/loss": Latest(value=5.188, step=412),
        "val/loss": Latest(value=5.204, step=400),
        "tokens_per_s": Latest(value=31_120.0, step=412),
        "mfu": Latest(value=0.49, step=412),
    },
    "trend": [11.9, 8.4, 6.9, 6.1, 5.6, 5.2],
    "parameters_varied": {"train.optimizer.lr": 3e-4},
    "eta_s": 1260.0,
    "created_at": _AT,
    "queued_at": _AT,
    "started_at": _AT + 12,
}
RUN = RunView(**_RUN_FIELDS)
DETAIL = RunDetail(
    **_RUN_FIELDS,
    spec=RUN_SPEC,
    provenance=_PROVENANCE,
    attempts=[
        AttemptView(
            id="k3f9x2ab-1",
            number=1,
            placement=[GpuRef(node="n1", gpu=2)],
            open=True,
            created_at=_AT + 10,
            dispatched_at=_AT + 11,
            last_heartbeat_at=_AT + 900,
            streams={"events.jsonl": 81_920, "rank-0.log": 10_240},
        )
    ],
)
_SWEEP_FIELDS: dict[str, Any] = {
    "id": "q7m2d4rt",
    "name": "lr-grid",
    "project": "default",
    "method": "grid",
    "metric": "val/loss",
    "goal": "minimize",
    "parameters": ["train.optimizer.lr"],
    "counts": {"running": 3, "failed": 1},
    "state": "running",
    "best_run_id": "k3f9x2ab",
    "best_value": 5.204,
    "compared_at_step": 400,
    "best_parameters": {"train.optimizer.lr": 3e-4},
    "held_out": "same",
    "created_at": _AT,
}
SWEEP = SweepView(**_SWEEP_FIELDS)
SWEEP_DETAIL = SweepDetail(
    **_SWEEP_FIELDS,
    spec=SWEEP_SPEC,
    trials=[
        TrialView(
            number=2,
            parameters={"train.optimizer.lr": 3e-4},
            run=RUN,
            value=5.204,
            step=400,
            compared_value=5.204,
            rank=1,
            best=True,
            held_out="6705cb68d0c2f8f7b1e04a4d5f3f6f0a4c0f0be1d6ce5be0a8f5f1f5f0b9a3c2",
        )
    ],
    notes=["1 trial failed: lr 0.003."],
)
METRICS = [
    MetricInfo(
        name="train/loss", points=412, last=5.188, last_step=412, minimum=5.17, maximum=11.93
    )
]
SERIES = [
    Series(
        run_id="k3f9x2ab",
        name="train/loss",
        exact=False,
        total_points=412,
        step=[137, 274, 412],
        x=[137.0, 274.0, 412.0],
        y=[6.9, 5.8, 5.188],
        low=[6.8, 5.7, 5.17],
        high=[11.93, 6.9, 5.8],
    )
]
LOG_STREAMS = [LogStream(name="rank-0.log", attempt=1, size_bytes=10_240)]
LOG_CHUNK = LogChunk(
    name="rank-0.log",
    attempt=1,
    offset=10_201,
    next_offset=10_240,
    size_bytes=10_240,
    text="step 412  loss 5.188  31.1k tokens/s\n",
    ended=False,
)
EVENTS = [
    EventView(
        at=_AT,
        kind="transition",
        message="queued: submitted",
        attempt=0,
        data={"from": None, "to": "queued", "cause": "submitted", "actor": "user"},
    ),
    EventView(
        at=_AT + 600,
        kind="checkpoint",
        message="checkpoint at step 250 (interval)",
        attempt=1,
        step=250,
    ),
]
SAMPLES = [
    SampleView(
        step=400, attempt=1, prompt="The meaning of life is ", text="to learn.", at=_AT + 800
    )
]
CHECKPOINTS = [
    CheckpointView(
        run_id="k3f9x2ab",
        attempt=1,
        step=250,
        path="attempt-1/checkpoints/step-00000250",
        size_bytes=9_060_507_648,
        digest="9b74c9897bac770ffc029102a200c5de4d4e1e3b6f2a7f0c9a5d1b2e3c4f5a6b",
        reason="interval",
        val_loss=5.61,
        best=True,
        latest=True,
        created_at=_AT + 600,
    )
]
CHECKPOINT_FILES = CheckpointFiles(
    run_id="k3f9x2ab",
    attempt=1,
    step=250,
    digest="9b74c9897bac770ffc029102a200c5de4d4e1e3b6f2a7f0c9a5d1b2e3c4f5a6b",
    files=[FileView(name="model.safetensors", size_bytes=3_020_169_216, sha256="5e88" + "0" * 60)],
)
CHECKPOINT_VERDICT = CheckpointVerdict(
    run_id="k3f9x2ab",
    attempt=1,
    step=250,
    ok=True,
    places=[
        PlaceVerdict(
            place="s3://bucket/prefix/k3f9x2ab/attempt-1/checkpoints/step-00000250",
            ok=True,
            message="4 files, 9,060,507,648 bytes: they match the manifest",
        )
    ],
)
CHECKPOINT_DELETION = CheckpointDeletion(
    run_id="k3f9x2ab",
    attempt=1,
    step=250,
    deleted=False,
    bytes=9_060_507_648,
    places=["s3://bucket/prefix/k3f9x2ab/attempt-1/checkpoints/step-00000250"],
)
DELETION = Deletion(
    run_id="k3f9x2ab",
    name="lr-grid-2",
    deleted=True,
    bytes=18_121_106_432,
    run_directory_bytes=18_121_015_296,
    streams_bytes=91_136,
    checkpoints=2,
    notes=["it is a trial of a sweep, which keeps its place but loses its value"],
)
LOG_HITS = LogHits(
    name="rank-0.log",
    attempt=1,
    lines=[LogHit(offset=8192, text="warning: the gradient norm rose to 41.2")],
)
SWEEP_DELETION = SweepDeletion(
    sweep_id="q7m2d4rt",
    name="lr-grid",
    deleted=True,
    runs=8,
    bytes=144_968_851_456,
    checkpoints=16,
)
CLUSTER = ClusterView(
    state="up",
    nodes=[
        NodeView(
            name="n1",
            address="10.0.0.5",
            alive=True,
            logical=False,
            gpus=[
                GpuView(
                    index=2,
                    name="NVIDIA H100 80GB HBM3",
                    memory_bytes=85_520_809_984,
                    utilization=0.97,
                    memory_used_bytes=61_316_530_176,
                    temperature_celsius=64,
                    run_id="k3f9x2ab",
                    run_name="lr-grid-2",
                    attempt=1,
                    since=_AT + 10,
                )
            ],
            cpus=96,
            last_seen_at=_AT + 900,
        )
    ],
    gpus_total=1,
    gpus_busy=1,
)
QUEUE = [
    QueueEntry(
        position=1,
        run_id="m8c4w9zz",
        name="lr-grid-5",
        gpus=1,
        nodes=1,
        gpu_type="H100",
        priority=0,
        reason="waits for 1 x H100 (all busy); next in line at priority 0",
        queued_at=_AT,
    )
]
HEALTH = Health(version=__version__, protocol=1)
CONFIG = "model:\n  kind: llama\n  vocab_size: 512\nsteps: 1000\n"
EVENT_STREAM = (
    'event: hello\ndata: {"missed":false}\n\n'
    "id: 1\nevent: metrics\n"
    'data: {"run_id":"k3f9x2ab","latest":{"train/loss":{"value":5.188,"step":412}}}\n\n'
)


def page(item: BaseModel, kind: Any) -> Page[Any]:
    return Page[kind](items=[item], next_cursor="41", total=812)


RUN_PAGE = page(RUN, RunView)
SWEEP_PAGE = page(SWEEP, SweepView)

_PROBLEMS: dict[int, tuple[str, Problem]] = {
    400: (
        "The request cannot be read.",
        Problem(
            title="Bad Request", status=400, code="bad_request", detail="the body is not JSON."
        ),
    ),
    401: (
        "The token is missing or wrong.",
        Problem(
            title="Unauthorized", status=401, code="unauthorized", detail="a token is required."
        ),
    ),
    404: (
        "There is no such thing.",
        Problem(
            title="Not Found",
            status=404,
            code="not_found",
            detail="There is no run 'k3f9'.",
            hint="Did you mean k3f9x2ab?",
        ),
    ),
    409: (
        "The thing exists, but its state forbids this.",
        Problem(
            title="Conflict",
            status=409,
            code="conflict",
            detail="first-run (k3f9x2ab) has ended: it is completed.",
        ),
    ),
    413: (
        "The body is too large.",
        Problem(
            title="Content Too Large",
            status=413,
            code="too_large",
            detail="the body is larger than 1,048,576 bytes, the limit.",
        ),
    ),
    422: (
        "The request is wrong; `problems` names each thing that is.",
        Problem(
            title="Unprocessable Content",
            status=422,
            code="invalid_spec",
            detail="train.optimizer.learning_rate is not a field.",
            problems=[
                {
                    "path": "train.optimizer.learning_rate",
                    "message": "train.optimizer.learning_rate is not a field.",
                    "hint": "Did you mean train.optimizer.lr?",
                }
            ],
        ),
    ),
    429: (
        "Too much is being written at once; `Retry-After` says when to come back.",
        Problem(
            title="Too Many Requests",
            status=429,
            code="busy",
            detail="72 pieces of streams wait to be written; send it again.",
        ),
    ),
}
OFFSET = OffsetProblem(
    title="Conflict",
    status=409,
    code="offset_mismatch",
    detail="events.jsonl of k3f9x2ab-1 ends at 4,096; it cannot go on at 8,192.",
    offset=4096,
)


def answers(
    example: BaseModel | list[Any] | dict[str, Any],
    *problems: int,
    status: int = 200,
) -> dict[int | str, dict[str, Any]]:
    """A route's ``responses``: what it answers, and the problems that it may answer instead."""
    found: dict[int | str, dict[str, Any]] = {
        status: {"content": {"application/json": {"example": _plain(example)}}}
    }
    for problem in sorted({401, 422, *problems}):
        text, shown = _PROBLEMS[problem]
        found[problem] = problem_answer(text, shown)
    return found


def text_answers(example: str, media_type: str, *problems: int) -> dict[int | str, dict[str, Any]]:
    """The same for what is not JSON."""
    found = answers({}, *problems)
    found[200] = {"content": {media_type: {"schema": {"type": "string"}, "example": example}}}
    return found


def body_problems() -> dict[str, dict[str, Any]]:
    """What any request with a body may be answered: it cannot be read, or is too large."""
    return {str(status): problem_answer(*_PROBLEMS[status]) for status in (400, 413)}


def problem_answer(text: str, shown: Problem) -> dict[str, Any]:
    schema = {"$ref": f"#/components/schemas/{type(shown).__name__}"}
    example = shown.model_dump(mode="json", exclude_none=True)
    return {"description": text, "content": {MEDIA_TYPE: {"schema": schema, "example": example}}}


def _plain(example: BaseModel | list[Any] | dict[str, Any]) -> Any:
    if isinstance(example, BaseModel):
        return example.model_dump(mode="json")
    if isinstance(example, list):
        return [_plain(one) for one in example]
    return example
