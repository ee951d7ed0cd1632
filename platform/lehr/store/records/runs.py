"""Runs: submitted, found, listed, tagged, archived, deleted."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from typing import Any

from sqlalchemy import bindparam, update
from sqlmodel import col, select

from lehr.control.lifecycle import RunState
from lehr.errors import Conflict
from lehr.specs.run import RunSpec
from lehr.store.changes import Change
from lehr.store.database import Clock, Database
from lehr.store.records.lists import RowPage, fetch_page, filters
from lehr.store.records.refs import find
from lehr.store.records.requests import add_request
from lehr.store.records.run_rows import (
    DELETE,
    announce_run,
    get_run,
    insert_run,
    is_deleted,
    refuse_deleted,
    waiting_forks,
)
from lehr.store.tables import Attempt, CheckpointRow, RunRequest, RunRow


class Runs:
    """Runs as they were submitted: created, found, listed, tagged, archived, deleted."""

    def __init__(self, db: Database, clock: Clock) -> None:
        self._db = db
        self._clock = clock

    def create(
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
        with self._db.write() as session:
            run = insert_run(
                session,
                spec,
                at=self._clock(),
                actor=actor,
                provenance=provenance,
                sweep_id=sweep_id,
                resume_from=resume_from,
                forked_from=forked_from,
            )
            session.flush()
            announce_run(self._db, run)
            return run

    def get(self, run_id: str) -> RunRow:
        """By its whole id."""
        with self._db.read() as session:
            return get_run(session, run_id)

    def by_ids(self, run_ids: Collection[str]) -> list[RunRow]:
        """Those of these ids that exist, newest first."""
        with self._db.read() as session:
            rows = session.exec(
                select(RunRow)
                .where(col(RunRow.id).in_(run_ids))
                .order_by(col(RunRow.number).desc())
            )
            return list(rows.all())

    def find(self, ref: str) -> RunRow:
        """By id, name (the newest wins), or an id's beginning; NotFound names near ones."""
        with self._db.read() as session:
            return find(session, RunRow, ref, "run")

    def by_state(self, states: Collection[RunState]) -> list[RunRow]:
        """All runs in these states, oldest first."""
        with self._db.read() as session:
            rows = session.exec(
                select(RunRow)
                .where(col(RunRow.state).in_([str(state) for state in states]))
                .order_by(col(RunRow.number))
            )
            return list(rows.all())

    def tracked(self) -> list[RunRow]:
        """Runs whose spec asks for a mirror in W&B, archived ones too, oldest first."""
        mode = col(RunRow.spec)["tracking"]["wandb"]["mode"].as_string()
        with self._db.read() as session:
            wanted = (
                select(RunRow).where(mode.in_(["online", "offline"])).order_by(col(RunRow.number))
            )
            return list(session.exec(wanted).all())

    def page(
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
        with self._db.read() as session:
            return fetch_page(session, RunRow, wanted, limit, cursor)

    def set_archived(self, run_id: str, archived: bool, *, actor: str = "user") -> RunRow:
        """Puts an ended run out of sight, or back. Asking twice is once."""
        with self._db.write() as session:
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
            add_request(
                session, run, "archive" if archived else "unarchive", None, actor, self._clock()
            )
            announce_run(self._db, run)
            return run

    def set_tags(self, run_id: str, tags: Sequence[str], *, actor: str = "user") -> RunRow:
        """Puts these tags in place of the run's; its spec keeps what it was submitted with."""
        with self._db.write() as session:
            run = get_run(session, run_id)
            if run.tags == list(tags):
                return run
            run.tags = list(tags)
            session.add(run)
            add_request(session, run, "tag", ", ".join(tags) or None, actor, self._clock())
            announce_run(self._db, run)
            return run

    def mark_deleted(
        self, run_id: str, *, actor: str = "user", message: str | None = None
    ) -> RunRow:
        """The record's part of a deletion: the run stays as a tombstone, archived.

        Its spec, moves and attempts are kept; its checkpoints are gone for everybody from here on.
        ``Streams.forget`` does the rest. May be repeated.

        Raises:
            Conflict: it has not ended, an attempt of it still has something to say, or a fork
                that has not ended would begin from one of its checkpoints.
        """
        at = self._clock()
        with self._db.write() as session:
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
                add_request(session, run, DELETE, message, actor, at)
            announce_run(self._db, run)
            return run

    def deleted_ids(self) -> set[str]:
        """The ids of runs whose data was deleted."""
        with self._db.read() as session:
            return set(
                session.exec(select(RunRequest.run_id).where(RunRequest.kind == DELETE)).all()
            )

    def waiting_forks(self, run_id: str) -> list[RunRow]:
        """Forks of the run that still need one of its checkpoints to begin from."""
        with self._db.read() as session:
            return waiting_forks(session, run_id)

    def set_pending_reasons(self, reasons: Mapping[str, str]) -> None:
        """Why runs wait. Written, and told, only where it changed and the run still waits."""
        if not reasons:
            return
        with self._db.read() as session:
            rows = session.exec(
                select(RunRow.id, RunRow.pending_reason, RunRow.sweep_id).where(
                    RunRow.state == RunState.QUEUED.value
                )
            ).all()
        changed = [
            (run_id, sweep_id, reasons[run_id])
            for run_id, now, sweep_id in rows
            if run_id in reasons and reasons[run_id] != now
        ]
        if not changed:
            return
        # Reasons are computed again by each tick: not worth a flush to disk.
        with self._db.write(durable=False) as session:
            # One statement: a sweep's thousands of trials are told at once.
            session.connection().execute(
                update(RunRow)
                .where(
                    col(RunRow.id) == bindparam("which"), col(RunRow.state) == RunState.QUEUED.value
                )
                .values(pending_reason=bindparam("why")),
                [{"which": run_id, "why": why} for run_id, _, why in changed],
            )
            for run_id, _, _ in changed:
                self._db.changed(Change("run", run_id))
            for sweep_id in {sweep_id for _, sweep_id, _ in changed if sweep_id is not None}:
                self._db.changed(Change("sweep", sweep_id))
