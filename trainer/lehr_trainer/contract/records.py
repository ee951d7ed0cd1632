"""The records of ``events.jsonl``: what a trainer reports about itself.

One JSON object a line, in order, never rewritten. ``started`` carries the
schema version and comes before any step; only notices (data being prepared)
may come before it, or ``finished`` where it never came to a step. NaN and infinities are
written as the strings "NaN", "Infinity" and "-Infinity", since JSON has no
numbers for them and they are what people look for.

A reader must skip a kind or a field that it does not know: writers may be newer.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field, TypeAdapter

SCHEMA_VERSION = 1

MOST = 2**62
"""Every count is below this, so that it and a sum of two of them fit into 64 bits."""
LATEST = 253_402_300_800.0
"""Every time is before this: the year 10000, the first that calendars cannot show."""

Count = Annotated[int, Field(ge=0, lt=MOST)]
Time = Annotated[float, Field(ge=0, lt=LATEST, allow_inf_nan=False)]


class Record(BaseModel):
    model_config = ConfigDict(extra="ignore", frozen=True, ser_json_inf_nan="strings")

    time: Time
    """Seconds since the epoch, by the worker's clock."""


class Started(Record):
    kind: Literal["started"] = "started"
    schema_version: Count = SCHEMA_VERSION
    attempt: Count = 1
    world_size: Count = 1
    device: str = "cpu"
    """E.g. "cpu" or "NVIDIA H100 80GB HBM3"."""
    parameters: Count = 0
    tokens_per_step: Count = 0
    total_steps: Count = 0
    """0 if only the program determines it."""
    data_digest: str | None = None
    validation_digest: str | None = None
    held_out: Annotated[str, Field(max_length=200)] | None = None
    """What an evaluation scores, in words; None in records of older versions."""
    versions: dict[str, str] = Field(default_factory=dict)
    host: dict[str, Any] = Field(default_factory=dict)
    code: str | None = None
    """Digest of the capsule that the attempt trains with; None outside the platform."""
    compile: str | None = None
    """What is compiled: none, block or model; None in records of older versions."""
    bucket_mb: float | None = None
    """Size of DDP's buckets of gradients in MB (1e6 bytes); None without DDP."""
    startup_s: dict[str, float] = Field(default_factory=dict)
    """Seconds from process start, by phase: imports, data, model, compile, first_batch."""


class Resumed(Record):
    """Training resumes after ``step`` steps; earlier attempts' points beyond it are superseded."""

    kind: Literal["resumed"] = "resumed"
    step: Count
    checkpoint: str
    """Path relative to the run directory, e.g. ``attempt-1/checkpoints/step-00000100``."""
    skipped: list[str] = Field(default_factory=list)
    """Newer checkpoints that did not verify, each with the reason."""
    changed: list[str] = Field(default_factory=list)
    """Versions that differ from those of the checkpoint, e.g. ``torch 2.12.0 -> 2.13.0``."""
    skipped_through: Count | None = None
    """The data of the steps after ``step`` until this one are skipped: a rewind."""

    @property
    def rewound(self) -> str:
        """Return what a rewind has done, in words."""
        return (
            f"rewound from step {self.skipped_through:,} to {self.step:,}, skipped the data of "
            f"steps {self.step + 1:,} to {self.skipped_through:,}"
        )


class Metrics(Record):
    """Values after ``step`` optimizer steps (the first step logs as 1), ``tokens`` seen so far."""

    kind: Literal["metrics"] = "metrics"
    step: Count
    tokens: Count
    values: dict[str, float]


class Evaluation(Record):
    kind: Literal["evaluation"] = "evaluation"
    step: Count
    tokens: Count
    values: dict[str, float]
    validation_digest: str | None = None
    tasks: dict[str, str] = Field(default_factory=dict)
    """The digest of what each task asks, by its name; of ``mean``, what all of them ask."""


class Sample(Record):
    kind: Literal["sample"] = "sample"
    step: Count
    prompt: str
    text: str


class LoggedMedia(Record):
    """An image, table, histogram or file of a program; its bytes are in ``media.bin``."""

    kind: Literal["media"] = "media"
    step: Count
    name: Annotated[str, Field(min_length=1, max_length=200)]
    type: Literal["image", "table", "histogram", "file"]
    caption: Annotated[str, Field(max_length=500)] = ""
    """The name of a file."""
    offset: Count
    size: Count
    """In bytes."""


class Checkpoint(Record):
    """A checkpoint became complete (its manifest is on disk)."""

    kind: Literal["checkpoint"] = "checkpoint"
    step: Count
    path: Annotated[str, Field(max_length=200)]
    """Relative to the run directory."""
    size_bytes: Count
    digest: Annotated[str, Field(max_length=64)]
    """SHA-256 of the manifest."""
    reason: Annotated[str, Field(max_length=40)] = "interval"
    """interval, stage, last, stop or order."""
    val_loss: float | None = None
    score: float | None = None
    """The value of the task that ``checkpoint.keep_best`` names."""
    seconds: float = 0.0
    blocked_s: float = 0.0
    """How long the training loop waited for it: all of ``seconds``, unless saves are
    asynchronous."""
    waited_s: float = 0.0
    """Of these, until the save before had ended."""


class CheckpointRemoved(Record):
    kind: Literal["checkpoint_removed"] = "checkpoint_removed"
    step: Count
    path: str
    reason: str = "retention"


class Warning_(Record):  # noqa: N801 - Warning is a builtin
    kind: Literal["warning"] = "warning"
    code: str
    message: str
    step: Count | None = None


class Notice(Record):
    """Progress of work before or between steps: data is prepared, a kernel compiles."""

    kind: Literal["notice"] = "notice"
    phase: str
    message: str
    done: float | None = None
    """A share from 0 to 1, when it can be known."""


class LoggedConfig(Record):
    """Values that a program gave as its config beside its arguments: those that are new or have
    changed since the attempt's last such record.
    """

    kind: Literal["config"] = "config"
    values: dict[str, bool | int | float | str | None]


class Stopping(Record):
    kind: Literal["stopping"] = "stopping"
    step: Count
    reason: str
    """signal, pause, cancel, prune, rewind, nan or time_limit."""


class Finished(Record):
    """The last record: ``outcome`` is how training ended, as the trainer saw it."""

    kind: Literal["finished"] = "finished"
    step: Count
    outcome: Literal["completed", "stopped", "failed"]
    cause: str | None = None
    """For a failure, a machine-readable cause: nan_loss, out_of_memory, disk_full, bad_data, ..."""
    message: str | None = None
    """For a failure, what happened and what to try, in a sentence or two."""


AnyRecord = Annotated[
    Started
    | Resumed
    | Metrics
    | Evaluation
    | Sample
    | LoggedMedia
    | Checkpoint
    | CheckpointRemoved
    | Warning_
    | Notice
    | LoggedConfig
    | Stopping
    | Finished,
    Field(discriminator="kind"),
]

record_adapter: TypeAdapter[AnyRecord] = TypeAdapter(AnyRecord)


LogFn = Callable[[str], None]
"""Print one line."""

Notify = Callable[[str, str, float | None], None]
"""Report progress: phase, message, and the share done where it is known."""
