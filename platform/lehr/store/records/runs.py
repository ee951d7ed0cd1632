"""Runs: recorded, found, listed."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from sqlmodel import Session, col, select

from lehr.control.lifecycle import ENDED, RunState
from lehr.errors import Conflict, NotFound
from lehr.specs.run import RunSpec
from lehr.store.base import StoreBase
from lehr.store.ids import new_id
from lehr.store.records.lists import RowPage, filters, page
from lehr.store.records.refs import find
from lehr.store.tables import (
    Attempt,
    CheckpointRow,
    IdempotencyRow,
    RolloutRow,
    RunRequest,
    RunRow,
    SweepRow,
    Transition,
)

DELETE = "delete"
"""The request whose row says that a run's data was deleted: its tombstone."""


@dataclass(frozen=True)
class StoredAnswer:
    """What a request was answered the first time."""

    status: int
    body: dict[str, Any]


class RunRecords(StoreBase):
    def create_run(
        self,
        spec: RunSpec,
        *,
        actor: str = "user",
        provenance: Mapping[str, Any] | None = None,
        sweep_id: str | None = None,
        resume_from: str | None = None,
        forked_from: str | None = None,
    ) -> RunRow:
        """Records a run and puts it in the queue."""
        with self.db.write() as session:
            run = insert_run(
                session,
                spec,
                at=self.clock(),
                actor=actor,
                provenance=provenance,
                sweep_id=sweep_id,
                resume_from=resume_from,
                forked_from=forked_from,
            )
            session.flush()
            self._run_changed(run)
            return run

    def run(self, run_id: str) -> RunRow:
        """By its whole id."""
        with self.db.read() as session:
            return get_run(session, run_id)

    def runs_by_id(self, run_ids: Collection[str]) -> list[RunRow]:
        """Those of these ids that exist, newest first."""
        with self.db.read() as session:
            rows = session.exec(
                select(RunRow)
                .where(col(RunRow.id).in_(run_ids))
                .order_by(col(RunRow.number).desc())
            )
            return list(rows.all())

    def find_run(self, ref: str) -> RunRow:
        """By id, name (the newest wins), or an id's beginning; NotFound names near ones."""
        with self.db.read() as session:
            return find(session, RunRow, ref, "run")

    def runs_by_state(self, states: Collection[RunState]) -> list[RunRow]:
        """All runs in these states, oldest first."""
        with self.db.read() as session:
            rows = session.exec(
                select(RunRow)
                .where(col(RunRow.state).in_([str(state) for state in states]))
                .order_by(col(RunRow.number))
            )
            return list(rows.all())

    def tracked_runs(self) -> list[RunRow]:
        """Runs whose spec asks for a mirror in W&B, archived ones too, oldest first."""
        mode = col(RunRow.spec)["tracking"]["wandb"]["mode"].as_string()
        with self.db.read() as session:
            wanted = (
                select(RunRow).where(mode.in_(["online", "offline"])).order_by(col(RunRow.number))
            )
            return list(session.exec(wanted).all())

    def list_runs(
        self,
        *,
        project: str | None = None,
        states: Collection[str] | None = None,
        sweep_id: str | None = None,
        name: str | None = None,
        tag: str | None = None,
        archived: bool | None = False,
        search: str | None = None,
        limit: int = 100,
        cursor: str | None = None,
    ) -> RowPage[RunRow]:
        """Newest first. ``search`` is a part of a name, id, project or tag; archived None: both."""
        wanted = filters(
            RunRow, project=project, name=name, tag=tag, archived=archived, search=search
        )
        if states is not None:
            wanted.append(col(RunRow.state).in_([str(RunState(state)) for state in states]))
        if sweep_id is not None:
            wanted.append(col(RunRow.sweep_id) == sweep_id)
        with self.db.read() as session:
            return page(session, RunRow, wanted, limit, cursor)

    def set_run_archived(self, run_id: str, archived: bool, *, actor: str = "user") -> RunRow:
        """Puts an ended run out of sight, or back. Asking twice is once."""
        with self.db.write() as session:
            run = get_run(session, run_id)
            if archived and not RunState(run.state).ended:
                raise Conflict(
                    f"{run.name} ({run.id}) is {run.state}: only ended runs are archived."
                )
            if not archived:
                refuse_deleted(session, run)
            if run.archived == archived:
                return run
            run.archived = archived
            session.add(run)
            _note(session, run, "archive" if archived else "unarchive", None, actor, self.clock())
            self._run_changed(run)
            return run

    def set_run_tags(self, run_id: str, tags: Sequence[str], *, actor: str = "user") -> RunRow:
        """Puts these tags in place of the run's; its spec keeps what it was submitted with."""
        with self.db.write() as session:
            run = get_run(session, run_id)
            if run.tags == list(tags):
                return run
            run.tags = list(tags)
            session.add(run)
            _note(session, run, "tag", ", ".join(tags) or None, actor, self.clock())
            self._run_changed(run)
            return run

    def mark_deleted(
        self, run_id: str, *, actor: str = "user", message: str | None = None
    ) -> RunRow:
        """The record's part of a deletion: the run stays as a tombstone, archived.

        Its spec, moves and attempts are kept; its checkpoints are gone for everybody from here on.
        ``forget_streams`` does the rest. May be repeated.

        Raises:
            Conflict: it has not ended, an attempt of it still has something to say, or a fork
                that has not ended would begin from one of its checkpoints.
        """
        at = self.clock()
        with self.db.write() as session:
            run = get_run(session, run_id)
            name = f"{run.name} ({run.id})"
            if not RunState(run.state).ended:
                raise Conflict(
                    f"{name} is {run.state}: only ended runs are deleted.",
                    hint=f"Cancel it first: lehr cancel {run.id}",
                )
            attempts = select(Attempt.id).where(Attempt.run_id == run_id, col(Attempt.open))
            if session.exec(attempts).first() is not None:
                raise Conflict(
                    f"{name} has ended, but its logs are still being uploaded.",
                    hint="Try again in a moment.",
                )
            forks = waiting_forks(session, run_id)
            if forks:
                which = ", ".join(f"{fork.name} ({fork.id})" for fork in forks[:5])
                raise Conflict(
                    f"{name} has a checkpoint in use: {which} will start from it.",
                    hint="Wait until it has saved its own checkpoint, or cancel it.",
                )
            run.archived = True
            session.add(run)
            for point in session.exec(
                select(CheckpointRow).where(
                    CheckpointRow.run_id == run_id, col(CheckpointRow.removed_at).is_(None)
                )
            ):
                point.removed_at = at
                session.add(point)
            if not is_deleted(session, run_id):
                _note(session, run, DELETE, message, actor, at)
            self._run_changed(run)
            return run

    def deleted_runs(self) -> set[str]:
        """The ids of runs whose data was deleted."""
        with self.db.read() as session:
            return set(
                session.exec(select(RunRequest.run_id).where(RunRequest.kind == DELETE)).all()
            )

    def forks_waiting(self, run_id: str) -> list[RunRow]:
        """Forks of the run that still need one of its checkpoints to begin from."""
        with self.db.read() as session:
            return waiting_forks(session, run_id)

    # ------------------------------------------------------------------- idempotency keys

    def idempotent(self, key: str, request_sha256: str) -> StoredAnswer | None:
        """What this request was answered before; None if it is new.

        Ask, act and ``remember`` inside one ``transaction()``, so that two clients with one key
        cannot both be new.

        Raises:
            Conflict: the key was used for another request.
        """
        with self.db.read() as session:
            row = session.get(IdempotencyRow, key)
            if row is None:
                return None
            if row.request_sha256 != request_sha256:
                raise Conflict(
                    f"The idempotency key {key!r} was used for another request.",
                    hint="Use a new key for a new request.",
                )
            return StoredAnswer(row.status, row.body)

    def remember(self, key: str, request_sha256: str, status: int, body: dict[str, Any]) -> None:
        with self.db.write() as session:
            session.add(
                IdempotencyRow(
                    key=key,
                    request_sha256=request_sha256,
                    status=status,
                    body=body,
                    created_at=self.clock(),
                )
            )
            session.flush()


def insert_run(
    session: Session,
    spec: RunSpec,
    *,
    at: float,
    actor: str,
    provenance: Mapping[str, Any] | None,
    sweep_id: str | None = None,
    resume_from: str | None = None,
    forked_from: str | None = None,
) -> RunRow:
    run = RunRow(
        id=unused_id(session, RunRow),
        name=spec.name,
        project=spec.project,
        sweep_id=sweep_id,
        spec=spec.model_dump(mode="json"),
        tags=list(spec.tags),
        priority=spec.priority,
        state=RunState.QUEUED.value,
        submitted_by=actor,
        provenance=dict(provenance or {}),
        forked_from=forked_from,
        resume_from=resume_from,
        created_at=at,
        queued_at=at,
    )
    session.add(run)
    session.flush()
    session.add(
        Transition(
            run_id=run.id,
            attempt=0,
            old=None,
            new=run.state,
            cause="submitted",
            actor=actor,
            at=at,
        )
    )
    return run


def unused_id(session: Session, table: type[RunRow | SweepRow | RolloutRow]) -> str:
    while True:
        found = new_id()
        if session.exec(select(table.number).where(table.id == found)).first() is None:
            return found


def get_run(session: Session, run_id: str) -> RunRow:
    run = session.exec(select(RunRow).where(RunRow.id == run_id)).one_or_none()
    if run is None:
        raise NotFound(f"There is no run {run_id!r}.")
    return run


def is_deleted(session: Session, run_id: str) -> bool:
    request = select(RunRequest.id).where(RunRequest.run_id == run_id, RunRequest.kind == DELETE)
    return session.exec(request).first() is not None


def refuse_deleted(session: Session, run: RunRow) -> None:
    """Raises Conflict for a run whose data is gone."""
    if is_deleted(session, run.id):
        raise Conflict(f"{run.name} ({run.id}) was deleted; only its record is kept.")


def waiting_forks(session: Session, run_id: str) -> list[RunRow]:
    """Forks that have not ended and have no checkpoint of their own yet."""
    own = select(CheckpointRow.id).where(
        CheckpointRow.run_id == RunRow.id,
        col(CheckpointRow.removed_at).is_(None) | (col(CheckpointRow.copy_state) == "there"),
    )
    query = select(RunRow).where(
        RunRow.forked_from == run_id,
        col(RunRow.state).not_in([str(state) for state in ENDED]),
        ~own.exists(),
    )
    return list(session.exec(query.order_by(col(RunRow.number))).all())


def _note(
    session: Session, run: RunRow, kind: str, message: str | None, actor: str, at: float
) -> None:
    session.add(
        RunRequest(
            run_id=run.id, attempt=run.attempt, kind=kind, message=message, actor=actor, at=at
        )
    )
