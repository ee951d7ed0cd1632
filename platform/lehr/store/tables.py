"""The tables of ``lehr.db``: what people asked for and what was decided.

Small and precious. Times are seconds since the epoch (UTC) as floats. Everything
that trainers say (metrics, logs, samples) is in the replica and its index,
``streams.db``, which can be rebuilt; this file cannot.
"""

from __future__ import annotations

from typing import Any

from sqlalchemy import JSON, Column, Index, UniqueConstraint
from sqlmodel import Field, SQLModel


class RunRow(SQLModel, table=True):
    __tablename__ = "runs"

    number: int | None = Field(default=None, primary_key=True)
    """Counts up in order of submission; the queue's tie-breaker."""
    id: str = Field(unique=True)
    """Short and random, e.g. ``k3f9x2ab``: what people and URLs use."""
    name: str = Field(index=True)
    project: str = Field(index=True)
    sweep_id: str | None = Field(default=None, foreign_key="sweeps.id", index=True)
    spec: dict[str, Any] = Field(sa_column=Column(JSON, nullable=False))
    """The RunSpec, resolved."""
    tags: list[str] = Field(default_factory=list, sa_column=Column(JSON, nullable=False))
    priority: int = 0
    state: str = Field(index=True)
    desired: str = "run"
    """control.lifecycle.Desired."""
    attempt: int = 0
    """Number of the newest attempt; 0 before the first."""
    checkpoint_seq: int = 0
    """Grows by one with each order to save a checkpoint now."""
    reason: str | None = None
    """Why it is in this state, for people: a failure's message, who cancelled it."""
    cause: str | None = None
    """The same for machines: nan_loss, out_of_memory, node_lost, ..."""
    pending_reason: str | None = None
    """Why it waits, while it waits."""
    user_failures: int = 0
    infrastructure_failures: int = 0
    preemptions: int = 0
    """Used of the three retry budgets."""
    submitted_by: str = "user"
    provenance: dict[str, Any] = Field(default_factory=dict, sa_column=Column(JSON, nullable=False))
    """Git commit and diff, versions, host, command, at submission."""
    forked_from: str | None = Field(default=None, index=True)
    resume_from: str | None = None
    """A checkpoint folder to begin from (a fork); absolute."""
    archived: bool = False
    created_at: float
    queued_at: float
    """When it last entered the queue."""
    started_at: float | None = None
    """When it first ran."""
    ended_at: float | None = None


class Attempt(SQLModel, table=True):
    """One launch of a run. Created in the transaction that moves the run to ``starting``."""

    __tablename__ = "attempts"
    __table_args__ = (UniqueConstraint("run_id", "number"),)

    id: str = Field(primary_key=True)
    """``<run id>-<number>``."""
    run_id: str = Field(foreign_key="runs.id", index=True)
    number: int
    placement: list[dict[str, Any]] = Field(
        default_factory=list, sa_column=Column(JSON, nullable=False)
    )
    """[{"node": name, "gpus": [indices]}], the first is where torchrun's rendezvous is."""
    token_sha256: str
    """Of the attempt's own token."""
    resume_from: str | None = None
    """The checkpoint it was pinned to, relative to the run directory or absolute."""
    open: bool = Field(default=True, index=True)
    """False once its process is known gone and its streams are complete or given up."""
    created_at: float
    dispatched_at: float | None = None
    """When an agent first confirmed the start."""
    last_heartbeat_at: float | None = None
    last_step: int | None = None
    last_step_at: float | None = None
    exited_at: float | None = Field(default=None, index=True)
    exit: dict[str, Any] | None = Field(default=None, sa_column=Column(JSON))
    """exit.json, or what stands in for it when the node was lost."""
    finished: dict[str, Any] | None = Field(default=None, sa_column=Column(JSON))
    """The trainer's ``finished`` record."""
    events_applied: int = 0
    """Bytes of events.jsonl whose consequences are in this file."""


class Transition(SQLModel, table=True):
    """Every transition of every run."""

    __tablename__ = "transitions"

    id: int | None = Field(default=None, primary_key=True)
    run_id: str = Field(foreign_key="runs.id", index=True)
    attempt: int
    old: str | None
    """None for the run's creation."""
    new: str
    cause: str
    message: str | None = None
    actor: str
    """user, dispatcher, trainer, sweep."""
    at: float


class RunRequest(SQLModel, table=True):
    """A demand on a run that is no transition yet: cancel it, pause it, save a checkpoint now."""

    __tablename__ = "requests"

    id: int | None = Field(default=None, primary_key=True)
    run_id: str = Field(foreign_key="runs.id", index=True)
    attempt: int
    kind: str
    """run, pause, cancel, prune (control.lifecycle.Desired), checkpoint, archive or unarchive."""
    message: str | None = None
    actor: str
    at: float


class SweepRow(SQLModel, table=True):
    __tablename__ = "sweeps"

    number: int | None = Field(default=None, primary_key=True)
    id: str = Field(unique=True)
    name: str = Field(index=True)
    project: str = Field(index=True)
    spec: dict[str, Any] = Field(sa_column=Column(JSON, nullable=False))
    tags: list[str] = Field(default_factory=list, sa_column=Column(JSON, nullable=False))
    created_at: float
    archived: bool = False
    stopped: str | None = None
    """Why it starts no further trial; None while it goes on."""
    reopened_at: float | None = None
    """When people last asked for more of it: failures before that no longer stop it."""


class Trial(SQLModel, table=True):
    """A point of a sweep. Its run may be replaced; its attempts never use it up."""

    __tablename__ = "trials"
    __table_args__ = (UniqueConstraint("sweep_id", "number"),)

    id: int | None = Field(default=None, primary_key=True)
    sweep_id: str = Field(foreign_key="sweeps.id", index=True)
    number: int
    parameters: dict[str, Any] = Field(sa_column=Column(JSON, nullable=False))
    run_id: str = Field(foreign_key="runs.id", index=True)


class RolloutRow(SQLModel, table=True):
    __tablename__ = "rollouts"

    number: int | None = Field(default=None, primary_key=True)
    id: str = Field(unique=True)
    name: str = Field(index=True)
    project: str = Field(index=True)
    spec: dict[str, Any] = Field(sa_column=Column(JSON, nullable=False))
    tags: list[str] = Field(default_factory=list, sa_column=Column(JSON, nullable=False))
    provenance: dict[str, Any] = Field(default_factory=dict, sa_column=Column(JSON, nullable=False))
    """Git commit and diff, versions, host, command, at launch; each of its runs gets it."""
    outcome: str | None = None
    """passed, failed or cancelled; None while it goes on."""
    reason: str | None = None
    """Why it failed or was cancelled, for people."""
    created_at: float
    ended_at: float | None = None
    archived: bool = False


class RolloutStage(SQLModel, table=True):
    """A stage of a rollout. All of them are there from the beginning."""

    __tablename__ = "rollout_stages"
    __table_args__ = (UniqueConstraint("rollout_id", "number"),)

    id: int | None = Field(default=None, primary_key=True)
    rollout_id: str = Field(foreign_key="rollouts.id", index=True)
    number: int
    """Counts from 1; the next one starts only when this one has passed."""
    name: str
    outcome: str | None = None
    """passed, failed or cancelled; None before that."""
    reason: str | None = None
    started_at: float | None = None
    ended_at: float | None = None


class RolloutRun(SQLModel, table=True):
    """That a stage's run was submitted: once a role."""

    __tablename__ = "rollout_runs"
    __table_args__ = (UniqueConstraint("rollout_id", "stage", "role"),)

    id: int | None = Field(default=None, primary_key=True)
    rollout_id: str = Field(foreign_key="rollouts.id", index=True)
    stage: int
    """The stage's number."""
    role: str
    """train, whole or resumed."""
    run_id: str = Field(foreign_key="runs.id", unique=True)


class GateVerdict(SQLModel, table=True):
    """What a gate was found to be: once, and for good."""

    __tablename__ = "gate_verdicts"
    __table_args__ = (UniqueConstraint("rollout_id", "stage", "gate"),)

    id: int | None = Field(default=None, primary_key=True)
    rollout_id: str = Field(foreign_key="rollouts.id", index=True)
    stage: int
    """The stage's number."""
    gate: str
    verdict: str
    """passed, failed or not_judged."""
    expected: str
    seen: str
    value: float | None = None
    at_least: float | None = None
    at_most: float | None = None
    unit: str | None = None
    run_id: str | None = Field(default=None, foreign_key="runs.id")
    """The run whose evidence it is."""
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
    path: str
    """Relative to the run directory."""
    size_bytes: int
    digest: str
    reason: str
    val_loss: float | None = None
    created_at: float
    removed_at: float | None = None
    """When the files that the trainer wrote were removed. A copy may outlive them."""
    copy_url: str | None = None
    copy_state: str | None = None
    """uploading, there, failed or removed; None where none was asked for, or not begun."""
    copy_at: float | None = None
    """When it came to that state."""
    copy_error: str | None = None
    """Why it failed, or is tried again."""


class IdempotencyRow(SQLModel, table=True):
    """The answer that a key got, so that a repeated request gets it again."""

    __tablename__ = "idempotency_keys"

    key: str = Field(primary_key=True)
    request_sha256: str
    status: int
    body: dict[str, Any] = Field(sa_column=Column(JSON, nullable=False))
    created_at: float


class NodeNote(SQLModel, table=True):
    """That a node was excluded from new work, or readmitted; the newest one of a node holds."""

    __tablename__ = "node_notes"

    id: int | None = Field(default=None, primary_key=True)
    node: str = Field(index=True)
    kind: str
    """excluded or readmitted."""
    message: str
    actor: str
    at: float
