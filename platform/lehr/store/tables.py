"""The tables of ``lehr.db``: users' requests and recorded decisions.

Times are seconds since the epoch (UTC) as floats. Everything that trainers record (metrics, logs,
samples) is in the replica and its index, ``streams.db``, which can be rebuilt; this file cannot.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from sqlalchemy import JSON, Index, UniqueConstraint
from sqlmodel import Field, SQLModel

from lehr.specs.stored import StoredSpec, StoredSweep


def _json(default: Callable[[], Any] | None = None) -> Any:
    return Field(default_factory=default, sa_type=JSON)


class _Named(SQLModel):
    """The columns that runs, sweeps and rollouts have in common."""

    number: int | None = Field(default=None, primary_key=True)
    """Counts up in order of submission; breaks ties in the queue."""
    id: str = Field(unique=True)  # Short and random, e.g. ``k3f9x2ab``; used by people and in URLs.
    name: str = Field(index=True)
    project: str = Field(index=True)
    spec: dict[str, Any] = _json()  # The RunSpec, SweepSpec or RolloutSpec, resolved.
    tags: list[str] = _json(list)
    note: str = Field(default="", sa_column_kwargs={"server_default": ""})
    """Text for people; at first the spec's notes."""
    archived: bool = False
    created_at: float


class RunRow(_Named, table=True):
    __tablename__ = "runs"

    sweep_id: str | None = Field(default=None, foreign_key="sweeps.id", index=True)
    priority: int = 0
    state: str = Field(index=True)
    desired: str = "run"  # control.lifecycle.Desired.
    attempt: int = 0  # Number of the newest attempt; 0 before the first.
    checkpoint_seq: int = 0  # Grows by one with each order to save a checkpoint now.
    reason: str | None = None
    """Why the run is in this state, for people: a failure's message, who cancelled it."""
    cause: str | None = None
    """The cause of the state, for programs: nan_loss, out_of_memory, node_lost, ..."""
    pending_reason: str | None = None  # Why the run waits, while it is queued.
    user_failures: int = 0
    infrastructure_failures: int = 0
    preemptions: int = 0  # How much of each of the three retry budgets is used.
    submitted_by: str = "user"
    provenance_sha256: str | None = Field(default=None, foreign_key="provenance.sha256", index=True)
    """Where its provenance is stored; None if none was given."""
    forked_from: str | None = Field(default=None, index=True)
    resume_from: str | None = None  # The checkpoint folder that a fork starts from; absolute.
    rewound: dict[str, int] | None = Field(default=None, sa_type=JSON)
    """Its last rewind: control.saved_points.Rewound."""
    claim: dict[str, Any] | None = Field(default=None, sa_type=JSON(none_as_null=True))
    """Its hypothesis and baseline, with what `lehr judge` knows: schemas.comparisons.ClaimView."""
    evaluates: str | None = Field(default=None, index=True, unique=True)
    """The checkpoint of another run that it evaluates: control.evaluations.Evaluates."""
    queued_at: float  # When it last entered the queue.
    started_at: float | None = None  # When it first became running.

    @property
    def stored(self) -> StoredSpec:
        return StoredSpec(self.spec)

    ended_at: float | None = None


class ProvenanceRow(SQLModel, table=True):
    """What runs were submitted from: git commit and diff, versions, host, command.

    The trials of a sweep share one row. A trigger removes it with the last run that uses it.
    """

    __tablename__ = "provenance"

    sha256: str = Field(primary_key=True)
    """The digest of ``data``; see ``lehr.store.records.run_rows``."""
    data: dict[str, Any] = _json()


class Attempt(SQLModel, table=True):
    """One launch of a run. Created in the transaction that makes the run ``starting``."""

    __tablename__ = "attempts"
    __table_args__ = (UniqueConstraint("run_id", "number"),)

    id: str = Field(primary_key=True)  # ``<run id>-<number>``.
    run_id: str = Field(foreign_key="runs.id", index=True)
    number: int
    placement: list[dict[str, Any]] = _json(list)
    """[{"node": name, "gpus": [indices]}], the first node hosts torchrun's rendezvous."""
    token_sha256: str  # The SHA-256 of the attempt's own token.
    resume_from: str | None = None
    """The checkpoint that it resumes from, relative to the run directory or absolute."""
    open: bool = Field(default=True, index=True)
    """False once its process has ended and its streams are complete or given up."""
    created_at: float
    dispatched_at: float | None = None  # When an agent first confirmed the start.
    last_heartbeat_at: float | None = None
    last_step: int | None = None
    last_step_at: float | None = None
    exited_at: float | None = Field(default=None, index=True)
    exit: dict[str, Any] | None = Field(default=None, sa_type=JSON)
    """exit.json, or a substitute when the node was lost."""
    finished: dict[str, Any] | None = Field(default=None, sa_type=JSON)
    """The trainer's ``finished`` record."""
    events_applied: int = 0  # How many bytes of events.jsonl are applied to this file.


class Transition(SQLModel, table=True):
    """A transition of a run's state."""

    __tablename__ = "transitions"

    id: int | None = Field(default=None, primary_key=True)
    run_id: str = Field(foreign_key="runs.id", index=True)
    attempt: int
    old: str | None  # None for the run's creation.
    new: str
    cause: str
    message: str | None = None
    actor: str  # user, dispatcher, trainer, sweep.
    at: float


class RunRequest(SQLModel, table=True):
    """A request of a user or an alert to a run: cancel it, pause it, save a checkpoint now."""

    __tablename__ = "requests"

    id: int | None = Field(default=None, primary_key=True)
    run_id: str = Field(foreign_key="runs.id", index=True)
    attempt: int
    kind: str
    """control.lifecycle.Desired, checkpoint, archive, unarchive, an alert's action, or message."""
    message: str | None = None
    actor: str
    at: float


class SweepRow(_Named, table=True):
    __tablename__ = "sweeps"

    submitted_by: str = Field(default="user", sa_column_kwargs={"server_default": "user"})
    """Also for trials that the sweep adds by itself."""
    stopped: str | None = None  # Why no further trial starts; None while the sweep goes on.
    reopened_at: float | None = None
    """When it was last extended or retried: failures before that no longer stop it."""
    seeds_of: str | None = Field(default=None, index=True)
    """The run that its trials repeat with other seeds."""

    @property
    def stored(self) -> StoredSweep:
        return StoredSweep(self.spec)


class Trial(SQLModel, table=True):
    """A point of a sweep. Its run may be replaced; a retry never uses up a trial."""

    __tablename__ = "trials"
    __table_args__ = (UniqueConstraint("sweep_id", "number"),)

    id: int | None = Field(default=None, primary_key=True)
    sweep_id: str = Field(foreign_key="sweeps.id", index=True)
    number: int
    parameters: dict[str, Any] = _json()
    run_id: str = Field(foreign_key="runs.id", index=True)


class RolloutRow(_Named, table=True):
    __tablename__ = "rollouts"

    provenance: dict[str, Any] = _json(dict)
    """Git commit and diff, versions, host, command, at launch; each of its runs gets it."""
    submitted_by: str = Field(default="user", sa_column_kwargs={"server_default": "user"})
    outcome: str | None = None  # passed, failed or cancelled; None while it goes on.
    reason: str | None = None  # Why it failed or was cancelled, for people.
    ended_at: float | None = None


class QuotaRow(SQLModel, table=True):
    """The most GPUs that a project's runs hold at a time."""

    __tablename__ = "quotas"

    project: str = Field(primary_key=True)
    gpus: int
    changed_by: str
    changed_at: float


class RolloutStage(SQLModel, table=True):
    """A stage of a rollout. All stages are recorded when the rollout is created."""

    __tablename__ = "rollout_stages"
    __table_args__ = (UniqueConstraint("rollout_id", "number"),)

    id: int | None = Field(default=None, primary_key=True)
    rollout_id: str = Field(foreign_key="rollouts.id", index=True)
    number: int  # Counts from 1; the next stage starts only when this one has passed.
    name: str
    outcome: str | None = None  # passed, failed or cancelled; None before that.
    reason: str | None = None
    started_at: float | None = None
    ended_at: float | None = None


class RolloutRun(SQLModel, table=True):
    """A run that a stage submitted: one per role."""

    __tablename__ = "rollout_runs"
    __table_args__ = (UniqueConstraint("rollout_id", "stage", "role"),)

    id: int | None = Field(default=None, primary_key=True)
    rollout_id: str = Field(foreign_key="rollouts.id", index=True)
    stage: int
    role: str  # train, whole or resumed.
    run_id: str = Field(foreign_key="runs.id", unique=True)


class GateVerdict(SQLModel, table=True):
    """The recorded result of a gate; it never changes."""

    __tablename__ = "gate_verdicts"
    __table_args__ = (UniqueConstraint("rollout_id", "stage", "gate"),)

    id: int | None = Field(default=None, primary_key=True)
    rollout_id: str = Field(foreign_key="rollouts.id", index=True)
    stage: int
    gate: str
    verdict: str  # passed, failed or not_judged.
    expected: str
    seen: str
    value: float | None = None
    at_least: float | None = None
    at_most: float | None = None
    unit: str | None = None
    run_id: str | None = Field(default=None, foreign_key="runs.id")
    step: int | None = None
    at: float


class CheckpointRow(SQLModel, table=True):
    __tablename__ = "checkpoints"
    __table_args__ = (
        UniqueConstraint("run_id", "attempt", "step"),
        Index("ix_checkpoints_run_step", "run_id", "step"),
    )

    id: int | None = Field(default=None, primary_key=True)
    run_id: str = Field(foreign_key="runs.id")
    attempt: int
    step: int
    path: str  # Relative to the run directory.
    size_bytes: int
    digest: str
    reason: str
    val_loss: float | None = None
    score: float | None = None
    created_at: float
    removed_at: float | None = None
    """When the trainer's files were removed. A copy may still exist."""
    copy_url: str | None = None
    copy_state: str | None = None
    """uploading, there, failed or removed; None where no copy is requested or begun."""
    copy_at: float | None = None  # When the copy entered that state.
    copy_error: str | None = None  # Why the copy failed, or is tried again.


class IdempotencyRow(SQLModel, table=True):
    """What the request of a key made, so that a repeated request gets it again."""

    __tablename__ = "idempotency_keys"

    key: str = Field(primary_key=True)
    request_sha256: str
    status: int
    made: str  # The id of what the request made or changed.
    created_at: float


class NodeNote(SQLModel, table=True):
    """A note that a node was excluded or readmitted; the newest one of a node counts."""

    __tablename__ = "node_notes"

    id: int | None = Field(default=None, primary_key=True)
    node: str = Field(index=True)
    kind: str  # excluded or readmitted.
    message: str
    actor: str
    at: float


class NodeUntil(SQLModel, table=True):
    """Until when a node is available; nodes without an end have no row."""

    __tablename__ = "node_until"

    node: str = Field(primary_key=True)
    until: float


class ClusterSpan(SQLModel, table=True):
    """What the server saw of a node, or of the queue, for a time."""

    __tablename__ = "cluster_spans"

    id: int | None = Field(default=None, primary_key=True)
    node: str  # Empty: of the queue.
    seen: dict[str, Any] = _json()  # schemas.cluster.SeenSpan.
    began: float
    ended: float = Field(index=True)


class NodeMinute(SQLModel, table=True):
    """The means of what a node's agent reported of a GPU, or of the machine, within a minute."""

    __tablename__ = "node_minutes"
    __table_args__ = (Index("ix_node_minutes_node", "node", "at"),)

    id: int | None = Field(default=None, primary_key=True)
    node: str
    gpu: int  # MACHINE: of the machine, its CPUs and RAM.
    at: float  # The end of the minute.
    utilization: float | None
    memory_used_bytes: float | None
    temperature_celsius: float | None
    power_watts: float | None


class AccessTokenRow(SQLModel, table=True):
    """A named token of a person or program. Its value is not stored."""

    __tablename__ = "access_tokens"

    name: str = Field(primary_key=True)
    role: str  # lehr.base.access.Role.
    sha256: str = Field(unique=True)
    created_at: float  # When it was created or last rotated.
    expires_at: float | None = None  # None: never.
    revoked_at: float | None = None
    gpu_hours: float | None = None
    """The budget: what the runs of its holder may use in all. None: no limit."""


class OutboxRow(SQLModel, table=True):
    """A message to a webhook that was not delivered yet."""

    __tablename__ = "outbox"

    id: int | None = Field(default=None, primary_key=True)
    webhook: str
    body: dict[str, Any] = _json()
    created_at: float
    tries: int = 0  # Tries that failed.
    due_at: float  # When it is tried next, in seconds since the epoch.


class AuditRow(SQLModel, table=True):
    """A request of a person that changed something, or was refused."""

    __tablename__ = "audit"

    id: int | None = Field(default=None, primary_key=True)
    at: float
    name: str = Field(index=True)  # The token's name; ``user`` is the home's own token.
    role: str
    method: str
    path: str
    status: int
    address: str
