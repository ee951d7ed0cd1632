"""What the REST API answers: the shapes that CLI, dashboard and client all read.

Times are seconds since the epoch (UTC). A value that is not known is null, never 0.
Non-finite numbers travel as the strings "NaN", "Infinity", "-Infinity".
"""

from __future__ import annotations

from typing import Any, Generic, Literal, TypeVar

from pydantic import BaseModel, ConfigDict, Field

T = TypeVar("T")


class View(BaseModel):
    model_config = ConfigDict(
        extra="ignore", ser_json_inf_nan="strings", use_attribute_docstrings=True
    )


class Page(View, Generic[T]):
    items: list[T]
    next_cursor: str | None = None
    """Pass as ``cursor`` for the next page; null on the last."""
    total: int | None = None


class GpuRef(View):
    node: str
    gpu: int


class Latest(View):
    """A metric's newest value."""

    value: float
    step: int


class LatestOfRun(View):
    """What the event stream tells when a run's metrics grew."""

    run_id: str
    latest: dict[str, Latest]


class RunView(View):
    id: str
    name: str
    project: str
    sweep_id: str | None = None
    rollout_id: str | None = None
    """The rollout of which it is a stage's run."""
    tags: list[str] = []
    state: str
    desired: str = "run"
    reason: str | None = None
    """Why it is in this state, in words."""
    cause: str | None = None
    pending_reason: str | None = None
    attempt: int = 0
    priority: int = 0
    gpus: int = 1
    nodes: int = 1
    gpu_type: str | None = None
    device: str | None = None
    """What the trainer runs on, e.g. "cpu (logical GPU)" or "NVIDIA H100 80GB HBM3"."""
    placement: list[GpuRef] = []
    step: int | None = None
    total_steps: int
    tokens_per_step: int
    parameters: int | None = None
    flops_per_token: float | None = None
    """To train on one token; null when the sequence length changes during the run."""
    latest: dict[str, Latest] = {}
    """Newest values of the core metrics: train/loss, val/loss, tokens_per_s, mfu, ..."""
    trend: list[float] = []
    """At most 24 values of train/loss over the run so far, for a sparkline."""
    parameters_varied: dict[str, Any] = {}
    """For a cell of a sweep: the values of its point."""
    eta_s: float | None = None
    silence: Literal["none", "unreachable", "stalled"] = "none"
    alarms: list[str] = []
    created_at: float
    queued_at: float | None = None
    started_at: float | None = None
    ended_at: float | None = None
    archived: bool = False
    forked_from: str | None = None
    submitted_by: str = "user"


class WandbView(View):
    """A run's mirror in Weights & Biases."""

    mode: Literal["online", "offline"]
    state: Literal["waiting", "mirroring", "done", "failed"]
    """waiting: not begun; done: all that the run has said; failed: tried again in a while."""
    records: int
    """Events mirrored."""
    behind_bytes: int
    """Of the run's events, not mirrored yet."""
    url: str | None = None
    """The run's page in W&B."""
    folder: str | None = None
    """Offline: the files on the server's machine, for `wandb sync`."""
    error: str | None = None
    text: str
    """All of it in a line."""


class RunDetail(RunView):
    spec: dict[str, Any]
    provenance: dict[str, Any] = {}
    attempts: list[AttemptView] = []
    wandb: WandbView | None = None
    """Its mirror in Weights & Biases; null when it has none."""


class AttemptView(View):
    id: str
    number: int
    placement: list[GpuRef] = []
    resume_from: str | None = None
    open: bool
    created_at: float
    dispatched_at: float | None = None
    last_beat_at: float | None = None
    exited_at: float | None = None
    exit_code: int | None = None
    outcome: str | None = None
    cause: str | None = None
    message: str | None = None
    streams: dict[str, int] = {}
    """Bytes replicated, by stream name."""


class CellView(View):
    number: int
    parameters: dict[str, Any]
    run: RunView
    value: float | None = None
    """The sweep metric's newest value."""
    step: int | None = None
    """The step of that value."""
    compared_value: float | None = None
    """The metric at the sweep's ``compared_at_step``: what the rank goes by."""
    rank: int | None = None
    """1 is best, among cells that have a finite value; ranked at equal step only."""
    best: bool = False


class SweepView(View):
    id: str
    name: str
    project: str
    tags: list[str] = []
    method: str
    metric: str
    goal: str
    parameters: list[str]
    """The dotted paths that vary."""
    counts: dict[str, int]
    """Runs by state."""
    to_come: int = 0
    """Points that TPE has yet to choose."""
    stopped: str | None = None
    """Why it starts no further cell; None while it goes on."""
    state: Literal["waiting", "running", "finished"]
    best_run_id: str | None = None
    best_value: float | None = None
    """Its metric at ``compared_at_step``; its point's mean, where points have several seeds."""
    compared_at_step: int | None = None
    """Where the cells are compared: the furthest step that half of them have reached. Null where
    they are compared at equal tokens, since their batches differ."""
    compared_at_tokens: int | None = None
    """The same in tokens, whichever it is."""
    best_parameters: dict[str, Any] | None = None
    created_at: float
    archived: bool = False


class PointView(View):
    """A point of a sweep over its seeds."""

    parameters: dict[str, Any]
    """Without the seed."""
    run_ids: list[str]
    mean: float | None = None
    """Of the compared values; null until all its seeds have one."""
    spread: float | None = None
    """Sample standard deviation between its seeds; null for a single one."""
    rank: int | None = None


class SweepDetail(SweepView):
    spec: dict[str, Any]
    cells: list[CellView]
    points: list[PointView] = []
    """Where points run with several seeds: they are what is ranked, by their means. Each cell has
    its point's rank then."""
    noise: float | None = None
    """Standard deviation between the seeds of a point, pooled over the points."""
    noise_band: float | None = None
    """Means that are nearer to each other than this cannot be told apart (two standard errors)."""
    notes: list[str] = []
    """What to know of the result, in words: the best is at the edge of the grid, ..."""


RolloutState = Literal["running", "passed", "failed", "cancelled"]
StageState = Literal["waiting", "running", "passed", "failed", "cancelled", "skipped"]
"""waiting: its turn has not come; skipped: the rollout ended before it, so nothing was started."""
GateState = Literal["waiting", "passed", "failed", "not_judged", "off"]
"""not_judged: what it goes by does not exist here, such as an MFU on a CPU; off: switched off."""


class GateView(View):
    """What a stage must show, and what it showed."""

    name: Literal["first_loss", "falling_loss", "no_alarm", "memory", "mfu", "exact_resume"]
    title: str
    """E.g. "first loss"."""
    state: GateState
    expected: str
    """In words and figures; what is known before the stage has run."""
    seen: str | None = None
    """In words and figures; null while it waits."""
    value: float | None = None
    """What was seen, as a number in ``unit``, where it is one."""
    at_least: float | None = None
    at_most: float | None = None
    """Bounds of ``value``, both included; null where there is none."""
    unit: str | None = None
    """nats, GB or share; null where there is no number."""
    run_id: str | None = None
    """The run that showed it."""
    step: int | None = None
    """Where it was seen."""
    judged_at: float | None = None


class StageRunView(View):
    role: Literal["train", "whole", "resumed"]
    """train: what all gates but one go by. whole, resumed: the pair that exact_resume compares;
    without ``whole``, the resumed run is compared with ``train``."""
    run: RunView


class StageView(View):
    number: int
    """Counts from 1."""
    name: Literal["cpu", "one_gpu", "two_gpus", "all"]
    title: str
    """E.g. "1 GPU"."""
    state: StageState
    reason: str | None = None
    """Why it failed, or what it is doing."""
    gpus: int
    nodes: int
    gpu_type: str | None = None
    model: str
    """A preset's name, or ``llama of 2 layers`` and the like."""
    steps: int
    tokens_per_step: int
    judged_at_step: int
    """Its gates are judged here at the latest; in the last stage, while it goes on."""
    changes: dict[str, Any]
    """What its run has otherwise than the rollout's run, by dotted path."""
    gates: list[GateView]
    runs: list[StageRunView]
    """In the order in which they were started."""
    gpu_seconds: float | None = None
    """GPUs held times seconds, of all its runs so far; null before the first has run."""
    started_at: float | None = None
    ended_at: float | None = None


class RolloutView(View):
    id: str
    name: str
    project: str
    tags: list[str] = []
    state: RolloutState
    reason: str | None = None
    """Why it stopped; null while it goes on and when all has passed."""
    stage: str | None = None
    """The name of the stage that it is at, or ended at."""
    progress: dict[str, StageState]
    """Each stage's state, by name, in their order."""
    run_id: str | None = None
    """Of the last stage: the run that was rolled out; null until it is submitted."""
    created_at: float
    ended_at: float | None = None
    archived: bool = False


class RolloutDetail(RolloutView):
    spec: dict[str, Any]
    stages: list[StageView]
    """All of them, in their order, those not started yet too."""
    notes: list[str] = []
    """What to know of it, in words: a stage that was left out, a gate that could not be judged."""


class MetricInfo(View):
    name: str
    points: int
    last: float
    last_step: int
    minimum: float | None = None
    maximum: float | None = None


class Series(View):
    """One metric of one run, reduced to at most ``points`` buckets unless ``exact``.

    ``x`` is by ``x_axis``: step, tokens, or seconds since the run's first point. In a reduced
    series each bucket has its last point in ``x``/``y`` and its range in ``low``/``high``.
    """

    run_id: str
    name: str
    x_axis: Literal["step", "tokens", "time"] = "step"
    exact: bool
    total_points: int
    step: list[int]
    x: list[float]
    y: list[float]
    low: list[float] | None = None
    high: list[float] | None = None
    nonfinite: list[int] = []
    """Steps whose value is NaN or infinite (the first 1,000), also where a bucket hides them."""
    superseded: list[Series] = []
    """Points of earlier attempts past where a later one resumed, when asked for."""


class LogStream(View):
    name: str
    attempt: int
    size_bytes: int
    cut: bool = False


class LogChunk(View):
    name: str
    attempt: int
    offset: int
    next_offset: int
    size_bytes: int
    text: str
    ended: bool
    """Nothing more will come: the attempt is closed."""


class LogHit(View):
    """A line of a log that contains what was searched for."""

    offset: int
    """Of its first byte: where to read on from."""
    text: str


class LogHits(View):
    name: str
    attempt: int
    lines: list[LogHit]
    next_offset: int | None = None
    """Search on from here: there may be more; null once the log was searched to its end."""


class EventView(View):
    """A move of the run, or something its trainer said, in order of time."""

    at: float
    kind: str
    """transition, wish, started, resumed, checkpoint, checkpoint_removed, evaluation, warning,
    notice, stopping, finished."""
    message: str
    attempt: int
    step: int | None = None
    data: dict[str, Any] = {}


class SampleView(View):
    step: int
    attempt: int
    prompt: str
    text: str
    at: float


class DifferenceView(View):
    path: str
    values: list[Any]
    """In the runs' order; "—" where a run does not have it."""
    factor: bool
    """It may change the outcome, and is not the seed."""


class StandingView(View):
    run_id: str
    name: str = ""
    state: str = ""
    x: float | None = None
    """The run's last point of the metric at or before ``common_x``."""
    value: float | None = None
    delta: float | None = None
    """From the baseline's, the first run."""
    tokens_per_s: float | None = None
    """Median over the run."""
    mfu: float | None = None
    """Median over the run, a share of the GPUs' dense peak."""
    memory_bytes: float | None = None
    """The most that one GPU held; on a CPU, the process."""


class ComparisonView(View):
    runs: list[str]
    metric: str
    x_axis: Literal["step", "tokens", "time", "flops"]
    common_x: float | None = None
    """The farthest that every run reached: values are taken there."""
    standings: list[StandingView]
    differences: list[DifferenceView]
    noise: float | None = None
    """Standard deviation between runs that differ only in their seed, if there are any."""
    notes: list[str]
    """What the comparison cannot say, in words."""


class CheckpointView(View):
    run_id: str
    attempt: int
    step: int
    path: str
    size_bytes: int
    digest: str
    reason: str
    val_loss: float | None = None
    best: bool = False
    latest: bool = False
    created_at: float
    removed_at: float | None = None
    """When the files that the trainer wrote were removed; a copy may outlive them."""
    node: str | None = None
    """Where those files were written: on shared storage they are everywhere."""
    copy_url: str | None = None
    """Where it is copied to, if its run's spec asks for that."""
    copy_state: Literal["uploading", "there", "failed", "removed"] | None = None
    copy_at: float | None = None
    """When the copy came to that state."""
    copy_error: str | None = None
    """Why it failed, or is tried again."""
    kept: list[str] = []
    """Why retention keeps it, in words; empty once it is gone, or will go at the next save."""


class FileView(View):
    name: str
    size_bytes: int
    sha256: str


class CheckpointFiles(View):
    """What a checkpoint consists of: its data files and, last, the manifest that lists them."""

    run_id: str
    attempt: int
    step: int
    digest: str
    """SHA-256 of manifest.json."""
    files: list[FileView]


class PlaceVerdict(View):
    place: str
    """A folder, or the URL of a copy."""
    ok: bool
    message: str
    """What was compared, or the first thing that is wrong."""


class CheckpointVerdict(View):
    """Each place where a checkpoint lies, read to the end and compared with its manifest."""

    run_id: str
    attempt: int
    step: int
    ok: bool
    """Every place is whole, and there is at least one."""
    places: list[PlaceVerdict]


class CheckpointDeletion(View):
    """What deleting one checkpoint frees, or has freed."""

    run_id: str
    attempt: int
    step: int
    deleted: bool
    bytes: int
    """In all places that can be reached."""
    places: list[str]
    notes: list[str] = []
    """What to know before, in words."""


class Deletion(View):
    """What deleting a run frees, or has freed. Its record stays: spec, provenance, moves."""

    run_id: str
    name: str
    deleted: bool
    bytes: int
    """In all: on the server's machine, and where checkpoints were copied to."""
    run_directory_bytes: int
    """Checkpoints, logs and profiles as the trainer wrote them."""
    streams_bytes: int
    """The replica of metrics and logs."""
    copies_bytes: int = 0
    """Copies of checkpoints elsewhere."""
    checkpoints: int
    notes: list[str] = []
    """What to know before, in words."""


class SweepDeletion(View):
    """What deleting a sweep's runs frees, or has freed. The record stays: spec, cells, moves."""

    sweep_id: str
    name: str
    deleted: bool
    runs: int
    bytes: int
    """In all: on the server's machine, and where checkpoints were copied to."""
    copies_bytes: int = 0
    """Copies of checkpoints elsewhere."""
    checkpoints: int
    notes: list[str] = []
    """What to know before, in words."""


class GpuView(View):
    index: int
    name: str
    """E.g. "NVIDIA A100-SXM4-80GB", or "logical GPU"."""
    memory_bytes: int | None = None
    utilization: float | None = None
    """Share of the driver's last sample period (1/6 to 1 s) in which a kernel ran, 0 to 1. Null
    where nothing is known: a logical GPU, no nvidia-ml-py on the node, a driver that is silent."""
    memory_used_bytes: int | None = None
    """Of all processes, without what the driver reserves."""
    temperature_celsius: float | None = None
    run_id: str | None = None
    run_name: str | None = None
    attempt: int | None = None
    since: float | None = None


class NodeView(View):
    name: str
    address: str
    alive: bool
    logical: bool
    """Its GPUs are logical: the trainer runs on its CPU."""
    gpus: list[GpuView]
    cpus: int | None = None
    last_seen_at: float | None = None
    excluded: str | None = None
    """Why nothing more is placed on it, until it is readmitted; None for a node in use."""


class ClusterView(View):
    state: Literal["starting", "up", "down"]
    message: str | None = None
    nodes: list[NodeView]
    gpus_total: int
    gpus_busy: int


class QueueEntry(View):
    position: int
    run_id: str
    name: str
    project: str = "default"
    gpus: int
    nodes: int
    gpu_type: str | None
    priority: int
    reason: str
    queued_at: float


class Health(View):
    status: Literal["ok"] = "ok"
    version: str
    protocol: int


class Problem(View):
    """RFC 9457 problem+json."""

    type: str = "about:blank"
    title: str
    status: int
    detail: str
    code: str
    """Machine-readable: invalid_spec, not_found, conflict, fenced, unauthorized, ..."""
    hint: str | None = None
    problems: list[dict[str, Any]] = Field(default_factory=list)
    """For a spec: each with path, message, hint."""


RunDetail.model_rebuild()
