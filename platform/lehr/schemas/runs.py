"""Runs: in lists, in full, their attempts, and what deleting one frees."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import ConfigDict, Field, computed_field

from lehr.base import formats
from lehr.schemas.base import Measured, View
from lehr.schemas.streams import AlertView
from lehr.specs.run import Name
from lehr.specs.sweep import Metric
from lehr_trainer.configs.base import Documented
from lehr_trainer.contract.records import LATEST


class UsedView(View):
    """What was used so far."""

    gpu_hours: float
    """From each attempt's start to the end of its processes, times its GPUs. While they live, the
    end is now. Without the time in the queue and in a pause, which hold no GPUs.
    """
    until: float | None = None
    """When it was computed, in seconds, if it grows: an attempt lives. Null: it does not."""


class CostView(UsedView):
    """What was used so far, and what a plan expects."""

    attempts: int
    """Number of attempts, those that failed or were requeued included."""
    gpu: str | None = None
    """Kind of GPU, from the device that a trainer saw, else as requested; null if unknown, or if
    the stages of a rollout used several kinds.
    """
    dollars_per_gpu_hour: float | None = None
    """Price of that kind in Lehr's table of GPUs: rounded, on demand. Yours may differ."""
    dollars: float | None = None
    """GPU-hours at that price; of a rollout, the sum over its stages."""
    planned_gpu_hours: float | None = None
    """What `lehr plan` expects of all its runs on that kind of GPU, without earlier measurements;
    of a sweep with more than 64 trials, computed from 64 of them; of a rollout, of all runs of all
    stages that it has, whether they have begun or not.
    """
    planned_dollars: float | None = None
    """The planned GPU-hours at the price of their kind of GPU."""
    planned_basis: str | None = None
    """How the planned GPU-hours were obtained, e.g. `at 42 % MFU (published runs on H100 reach 35
    to 44 %)`. Runs measured here are not used. Recomputation is added. Null if none are planned.
    """

    @computed_field  # type: ignore[prop-decorator]
    @property
    def text(self) -> str:
        """What was used and what was planned, as one line."""
        text = formats.gpu_hours(self.gpu_hours)
        if self.dollars is not None:
            text += f", {formats.dollars(self.dollars)}"
        if self.dollars_per_gpu_hour is not None:
            text += f" at ${self.dollars_per_gpu_hour:.2f} a GPU-hour ({self.gpu})"
        if self.planned_gpu_hours is not None:
            text += f"; planned {formats.gpu_hours(self.planned_gpu_hours)}"
            if self.planned_dollars is not None:
                text += f", {formats.dollars(self.planned_dollars)}"
            if self.planned_basis is not None:
                text += f" {self.planned_basis}"
        return text


SubmissionKind = Literal["run", "sweep", "rollout"]


class SubmissionCheck(View):
    """The server would accept the submission."""

    kind: SubmissionKind
    name: str
    warnings: list[str] = []
    """As of the run or sweep, once it is recorded."""


class ExternalBegin(Documented):
    """A process that Lehr did not start begins to report a run."""

    model_config = ConfigDict(extra="forbid")

    id: Annotated[str, Field(pattern=r"^[a-z][a-z0-9]{3,31}$", examples=["k3f9x2ab"])]
    """Id of the run. If it is in use, the run gets another one, unless it resumes."""
    resume: bool = False
    """Go on with the run of this id, as its next attempt."""
    token_sha256: Annotated[str, Field(pattern=r"^[0-9a-f]{64}$", examples=["0" * 64])]
    """SHA-256 of the token with which the process will send its streams."""
    started_at: Annotated[float, Field(ge=0, lt=LATEST, examples=[1.7644e9])]
    """When the process began, by its own clock."""
    spec: Annotated[
        dict[str, Any],
        Field(examples=[{"name": "mine", "trainer": {"external": True, "args": {"lr": 1e-3}}}]),
    ]
    """That of a run with `trainer.external`; its `trainer.args` are the config."""
    provenance: dict[str, Any] = {}


class ExternalGroup(Documented):
    """Runs that Lehr did not start, for a sweep; those that it has stay in it."""

    model_config = ConfigDict(extra="forbid")

    id: Annotated[str, Field(pattern=r"^[a-z][a-z0-9]{3,31}$", examples=["g3f9x2ab"])]
    """Id of their sweep."""
    name: Annotated[Name, Field(examples=["rates"])]
    run_ids: Annotated[list[str], Field(min_length=1, max_length=30_000, examples=[["k3f9x2ab"]])]
    metric: Metric | None = None
    """Ranks them. By default val/loss, or a loss that all of them log."""


class ExternalBegun(View):
    run_id: str
    attempt_id: str
    """Whose streams the process sends, with its token."""


class GpuRef(View):
    node: str
    gpu: int


class Latest(View):
    """A metric's newest value, to seven digits."""

    value: Measured
    step: int


class LatestOfRun(View):
    """The data of the event that a run's metrics grew."""

    run_id: str
    latest: dict[str, Latest]
    recorded_at: float | None = None
    """When they were recorded, as in a run."""


class RunView(View):
    id: str
    name: str
    project: str
    sweep_id: str | None = None
    rollout_id: str | None = None
    """The rollout whose stage it belongs to."""
    tags: list[str] = []
    note: str = ""
    """Text that people wrote; at first the spec's notes."""
    state: str
    desired: str = "run"
    reason: str | None = None
    """Why it is in this state."""
    cause: str | None = None
    pending_reason: str | None = None
    attempt: int = 0
    priority: int = 0
    gpus: int = 1
    nodes: int = 1
    gpu_type: str | None = None
    device: str | None = None
    """The trainer's device, e.g. "cpu (logical GPU)" or "NVIDIA H100 80GB HBM3"."""
    placement: list[GpuRef] = []
    """The GPUs of its attempt; empty for a run that waits or is paused."""
    step: int | None = None
    total_steps: int
    """0 for a program whose spec gives no number of steps: it is not known."""
    tokens_per_step: int
    """Of its last stage."""
    tokens: int | None = None
    """Tokens trained on, those before a fork included; null before the first step."""
    total_tokens: int = 0
    """After its last step; 0 where the number of steps is not known."""
    stage: str | None = None
    """The stage of ``train.stages`` of its next step, or of its last one."""
    parameters: int | None = None
    flops_per_token: float | None = None
    """Training FLOPs per token; null when the sequence length changes during the run."""
    latest: dict[str, Latest] = {}
    """Newest values of the core metrics: train/loss, val/loss, tokens_per_s, mfu, ..."""
    recorded_at: float | None = None
    """When its newest metrics were recorded, by its node's clock: how old they are. Null before the
    first.
    """
    trend: list[Measured] = []
    """At most 24 values of train/loss over the run so far, for a sparkline."""
    parameters_varied: dict[str, Any] = {}
    """For a trial of a sweep: the values of its point."""
    eta_s: float | None = None
    liveness: Literal["ok", "unreachable", "stalled"] = "ok"
    training_over: str | None = None
    """How its training has ended, while its node has not yet reported that its processes have."""
    alerts: list[str] = []
    created_at: float
    queued_at: float | None = None
    started_at: float | None = None
    ended_at: float | None = None
    used: UsedView | None = None
    """What its attempts have used; null before the first."""
    archived: bool = False
    forked_from: str | None = None
    submitted_by: str = "user"

    @property
    def newest(self) -> dict[str, float]:
        """The values of ``latest``, without their steps."""
        return {name: one.value for name, one in self.latest.items()}


class RunValuesView(View):
    """The configs of many runs by dotted path, and their newest values of some metrics."""

    runs: list[str]
    """Their ids; every list below is in this order."""
    same: dict[str, Any]
    """Values that are the same in all of them."""
    differing: dict[str, list[Any]]
    """Values that differ; null where a run does not have the path."""
    metrics: dict[str, list[float | None]]
    """Newest values of the requested metrics; null where a run has none."""
    metric_names: list[str] = []
    """Names of all metrics that any of them has logged, if they were requested."""
    groups: list[str] = []
    """The name of each run's group, such as ``lr 3.0e-3``, if ``by`` was given."""
    far: dict[str, list[str]] = {}
    """Of each requested metric of quality, the runs that the mean of their group is without: of 4
    or more, those worse than the others' median by over 20 median absolute deviations, of 2 % of it
    or more. A metric of speed has none.
    """


class WandbView(View):
    """A run's mirror in Weights & Biases."""

    mode: Literal["online", "offline"]
    state: Literal["waiting", "mirroring", "done", "failed"]
    """waiting: not started; done: all of the run is mirrored; failed: will be retried."""
    url: str | None = None
    """The run's page in W&B."""
    folder: str | None = None
    """Offline: the files on the server's machine, for `wandb sync`."""
    error: str | None = None
    text: str
    """Summary in one line."""


class ForecastView(View):
    """The loss that is expected of a live run at its last step."""

    metric: str
    step: int | None = None
    value: float | None = None
    """The median; null where it cannot be known."""
    likely: tuple[float, float] | None = None
    """The interval that should hold the final loss with 68 %; ``sure``: with 95 %."""
    sure: tuple[float, float] | None = None
    how: str
    """What it was made from; else why there is none."""

    @computed_field  # type: ignore[prop-decorator]
    @property
    def text(self) -> str:
        """The forecast as one line."""
        if self.value is None or self.likely is None or self.sure is None:
            return f"none yet: {self.how}"
        likely, sure = (f"{low:.3f} to {high:.3f}" for low, high in (self.likely, self.sure))
        bands = f"(68 %: {likely}; 95 %: {sure})"
        return f"{self.metric} {self.value:.3f} at its end {bands}, {self.how}"


class AttemptView(View):
    id: str
    number: int
    placement: list[GpuRef] = []
    resume_from: str | None = None
    open: bool
    created_at: float
    dispatched_at: float | None = None
    last_heartbeat_at: float | None = None
    exited_at: float | None = None
    exit_code: int | None = None
    signal: str | None = None
    """Name of the signal that ended it, e.g. SIGKILL; null if it ended by itself."""
    outcome: str | None = None
    cause: str | None = None
    message: str | None = None
    streams: dict[str, int] = {}
    """Replicated bytes, by stream name."""


class TrainStage(View):
    """A stage of ``train.stages``."""

    name: str
    first_step: int
    last_step: int
    tokens: int
    """Trained on before it."""
    sequences: int
    """Of a step."""
    sequence_length: int

    @property
    def text(self) -> str:
        return (
            f"steps {self.first_step:,} to {self.last_step:,}, "
            f"{self.sequences:,} x {self.sequence_length:,} tokens a step"
        )


class EvaluationView(View):
    """The evaluation of a checkpoint of a run, by a run of its own."""

    name: str
    attempt: int
    step: int
    run_id: str
    state: str
    reason: str | None = None


class RunDetail(RunView):
    stages: list[TrainStage] = []
    spec: dict[str, Any]
    logged_config: dict[str, Any] = {}
    """What its program gave to wandb as its config, beside its arguments."""
    provenance: dict[str, Any] = {}
    attempts: list[AttemptView] = []
    evaluations: list[EvaluationView] = []
    """Of its checkpoints, by name; their values are metrics of this run."""
    wandb: WandbView | None = None
    """Its mirror in Weights & Biases; null when it has none."""
    diagnosis: list[AlertView] = []
    """Those of ``alerts`` that the diagnosis of its curves raised, explained."""
    forecast: ForecastView | None = None
    """Of a live run, from its first loss on."""
    cost: CostView | None = None
    """Null before its first attempt."""
    held_out: str | None = None
    """What an evaluation scores, in words: the share of the held-out tokens and documents. Null
    before training starts, for a program, and for runs of older versions."""
    warnings: list[str] = []
    """What may go wrong on this cluster, each with a way out, until the run has ended; and what is
    lost of its streams, for ever."""


class Opened(View):
    """A run, sweep or rollout that was brought in: from a file of `lehr report`, or a group of runs
    that Lehr did not start.
    """

    id: str
    name: str
    runs: int
    new: bool


class Deletion(View):
    """What deleting a run frees, or has freed. Its record stays: spec, provenance, transitions."""

    run_id: str
    name: str
    deleted: bool
    bytes: int
    """Total: on the server's machine, and copies of checkpoints."""
    run_directory_bytes: int
    """Checkpoints, logs and profiles as the trainer wrote them."""
    streams_bytes: int
    """The replica of metrics and logs."""
    copies_bytes: int = 0
    """Copies of checkpoints in storage."""
    checkpoints: int
    notes: list[str] = []
    """What to know before deleting."""
