"""Runs: submit, find, list, tag, archive, delete."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from typing import Any, Unpack

from sqlalchemy import bindparam, case, func, or_, update
from sqlalchemy import select as columns
from sqlalchemy.orm import load_only
from sqlmodel import col, select

from lehr.control.lifecycle import ENDED, RunState
from lehr.errors import Conflict
from lehr.specs.run import RunSpec
from lehr.store.changes import Change
from lehr.store.database import Records
from lehr.store.records.lists import RowPage, fetch_page, find
from lehr.store.records.requests import add_request, add_requests
from lehr.store.records.run_lists import RunFilters, run_filters
from lehr.store.records.run_rows import (
    DELETE,
    among,
    announce_run,
    announce_runs,
    get_run,
    insert_run,
    is_deleted,
    provenance_of,
    refuse_deleted,
    shown_run,
    waiting_forks,
)
from lehr.store.tables import (
    Attempt,
    CheckpointRow,
    RolloutRow,
    RunRequest,
    RunRow,
    SweepRow,
)

BRIEF = [getattr(RunRow, name) for name in ("id", "name", "ended_at", "sweep_id")]
"""What the mean of many runs needs: no specs, which are most of a row."""


class Runs(Records):
    """Runs as they were submitted: created, found, listed, tagged, archived, deleted."""

    def create(self, spec: RunSpec, *, actor: str = "user", **columns: Any) -> RunRow:
        """Record a run and put it in the queue. ``columns``: the others of ``insert_run``."""
        with self._db.write() as session:
            run = insert_run(session, spec, at=self._clock(), actor=actor, **columns)
            session.flush()
            announce_run(self._db, run)
            return run

    def get(self, run_id: str) -> RunRow:
        """Return the run with this whole id."""
        with self._db.read() as session:
            return get_run(session, run_id)

    def provenance(self, run: RunRow) -> dict[str, Any]:
        """Return the provenance that the run was submitted with."""
        with self._db.read() as session:
            return provenance_of(session, run)

    def by_ids(self, run_ids: Collection[str], *, brief: bool = False) -> list[RunRow]:
        """Return the runs of these ids that exist, newest first; ``brief``: with ``BRIEF`` only."""
        found = select(RunRow).where(among(RunRow.id, run_ids)).order_by(col(RunRow.number).desc())
        return self._all(found.options(load_only(*BRIEF)) if brief else found)

    def ended_among(self, run_ids: Sequence[str]) -> list[str]:
        """Return those of these runs that have ended and had an attempt, in the given order."""
        ended = [state.value for state in RunState if state.ended]
        wanted = among(RunRow.id, run_ids) & col(RunRow.state).in_(ended) & (RunRow.attempt > 0)
        known = set(self._all(select(RunRow.id).where(wanted)))
        return [run_id for run_id in run_ids if run_id in known]

    def find(self, ref: str) -> RunRow:
        """Find by id, name (the newest wins), or an id's beginning; NotFound names near ones."""
        with self._db.read() as session:
            return find(session, RunRow, ref, "run")

    def by_state(self, states: Collection[RunState]) -> list[RunRow]:
        """Return all runs in these states, oldest first."""
        return self._all(
            select(RunRow)
            .where(col(RunRow.state).in_([str(state) for state in states]))
            .order_by(col(RunRow.number))
        )

    def projects(self) -> list[str]:
        """Return the projects that have a run which is not archived, by name."""
        listed = col(RunRow.archived).is_(False)
        return self._all(
            select(RunRow.project).where(listed).distinct().order_by(col(RunRow.project))
        )

    def ids_of_person(self, name: str) -> list[str]:
        """Return the ids of all runs that a person submitted, deleted ones too."""
        return self._all(select(RunRow.id).where(RunRow.submitted_by == name))

    def of_person(self, name: str) -> list[RunRow]:
        """Return the runs that a person submitted and that have not ended, oldest first."""
        live = col(RunRow.state).not_in([state.value for state in ENDED])
        runs = select(RunRow).where(RunRow.submitted_by == name, live)
        return self._all(runs.order_by(col(RunRow.number)))

    def claims(self, name: str) -> list[RunRow]:
        """Return the runs of a person that make a claim, in order of submission."""
        claims = select(RunRow).where(RunRow.submitted_by == name, col(RunRow.claim).is_not(None))
        return self._all(claims.order_by(col(RunRow.number)))

    def set_claim(self, run_id: str, claim: dict[str, Any]) -> RunRow:
        return self._set(run_id, "claim", claim)

    def tracked(self) -> list[RunRow]:
        """Return runs whose spec has a W&B mirror, archived ones too, oldest first."""
        mode = col(RunRow.spec)["tracking"]["wandb"]["mode"].as_string()
        runs = select(RunRow).where(mode.in_(["online", "offline"]))
        return self._all(runs.order_by(col(RunRow.number)))

    def page(
        self,
        *,
        limit: int = 100,
        cursor: str | None = None,
        selected: Any = None,
        **given: Unpack[RunFilters],
    ) -> RowPage[Any]:
        """Return a page of rows, or of what is ``selected`` of them, newest first."""
        with self._db.read() as session:
            return fetch_page(session, RunRow, run_filters(given), limit, cursor, selected)

    def matching(self, selected: Any, **given: Unpack[RunFilters]) -> list[Any]:
        """Return what is ``selected`` of all runs that match, newest first."""
        query = selected.where(*run_filters(given)).order_by(col(RunRow.number).desc())
        with self._db.read() as session:
            return list(session.execute(query))

    def set_archived(self, run_id: str, archived: bool, *, actor: str = "user") -> RunRow:
        """Archive or unarchive an ended run. Repeating it changes nothing."""
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

    def set_sweep_archived(self, sweep_id: str, archived: bool, *, actor: str = "user") -> None:
        """Archive or unarchive all runs of a sweep, except deleted ones, in few statements.

        Those that have not ended stay as they are.
        """
        deleted = columns(col(RunRequest.run_id)).where(col(RunRequest.kind) == DELETE)
        at = self._clock()
        with self._db.write() as session:
            changed = session.execute(
                update(RunRow)
                .where(
                    col(RunRow.sweep_id) == sweep_id,
                    col(RunRow.archived).is_not(archived),
                    col(RunRow.state).in_([str(state) for state in ENDED])
                    if archived
                    else col(RunRow.id).not_in(deleted),
                )
                .values(archived=archived)
                .returning(col(RunRow.id), col(RunRow.attempt)),
                execution_options={"synchronize_session": "fetch"},
            ).all()
            add_requests(session, changed, "archive" if archived else "unarchive", None, actor, at)
            announce_runs(self._db, [(run_id, sweep_id) for run_id, _ in changed])

    def set_tags(self, run_id: str, tags: Sequence[str], *, actor: str = "user") -> RunRow:
        """Replace the run's tags; its spec keeps those that it was submitted with."""
        request = ("tag", ", ".join(tags) or None, actor)
        return self._set(run_id, "tags", list(tags), request)

    def set_priority(self, run_id: str, priority: int, *, actor: str = "user") -> RunRow:
        """Replace the run's priority; its spec keeps the one that it was submitted with."""
        return self._set(run_id, "priority", priority, ("priority", str(priority), actor))

    def set_note(self, run_id: str, note: str) -> RunRow:
        """Replace the run's note; its spec keeps the one that it was submitted with."""
        return self._set(run_id, "note", note)

    def _set(
        self,
        run_id: str,
        column: str,
        value: Any,
        request: tuple[str, str | None, str] | None = None,
    ) -> RunRow:
        """Change a column, and record the request for it: its kind, message and actor."""
        with self._db.write() as session:
            run = get_run(session, run_id)
            if getattr(run, column) != value:
                setattr(run, column, value)
                session.add(run)
                if request is not None:
                    add_request(session, run, *request, self._clock())
                announce_run(self._db, run)
            return run

    def mark_deleted(
        self, run_id: str, *, actor: str = "user", message: str | None = None
    ) -> RunRow:
        """Mark a run as deleted: it stays as an archived tombstone.

        Its spec, transitions and attempts are kept; its checkpoints can no longer be used.
        ``Streams.forget`` deletes its streams. May be repeated.

        Raises:
            Conflict: it has not ended, an attempt of it still sends its streams, or a fork
                that has not ended would start from one of its checkpoints.
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
            if not run.stored.external and session.exec(attempts).first() is not None:
                raise Conflict(
                    f"{name} has ended, but its logs are still being uploaded.",
                    hint="Try again in a moment.",
                )
            forks = [fork for fork in waiting_forks(session, run_id) if not fork.evaluates]
            if forks:
                which = ", ".join(shown_run(fork) for fork in forks[:5])
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

    def is_deleted(self, run_id: str) -> bool:
        """Return whether the data of the run was deleted."""
        with self._db.read() as session:
            return is_deleted(session, run_id)

    def deleted_ids(self) -> set[str]:
        """Return the ids of runs whose data was deleted."""
        return set(self._all(select(RunRequest.run_id).where(RunRequest.kind == DELETE)))

    def capsules_in_use(self) -> set[str]:
        """Return the capsules of runs that are not deleted, and of sweeps and rollouts that are
        not archived: those may start runs again.
        """
        at, within = "$.code.digest", "$.run.code.digest"
        deleted = columns(col(RunRequest.run_id)).where(col(RunRequest.kind) == DELETE)
        queries = [
            columns(func.json_extract(col(RunRow.spec), at))
            .where(col(RunRow.id).not_in(deleted))
            .distinct(),
            *(
                columns(func.json_extract(col(table.spec), within))
                .where(~col(table.archived))
                .distinct()
                for table in (SweepRow, RolloutRow)
            ),
        ]
        with self._db.read() as session:
            found = {digest for query in queries for digest in session.scalars(query)}
        return {str(digest) for digest in found if digest is not None}

    def evaluations(self, run_id: str) -> list[RunRow]:
        """Return the runs that evaluate checkpoints of a run, in order of submission."""
        own = col(RunRow.evaluates).between(f"{run_id}/", f"{run_id}0")  # 0 follows the slash.
        return self._all(select(RunRow).where(own).order_by(col(RunRow.number)))

    def evaluated(self, run_ids: Collection[str] | None = None) -> set[str]:
        """Return those of these runs that have evaluations, and those that others of them evaluate.

        Without ids: all that have evaluations and are not archived.
        """
        spec = col(RunRow.spec)
        has = or_(
            func.json_extract(spec, "$.evaluations").is_not(None),
            func.json_extract(spec, "$.train.evals").like('%"where":"beside"%'),
        )
        if run_ids is None:
            return set(self._all(select(RunRow.id).where(has, ~col(RunRow.archived))))
        evaluated = func.substr(RunRow.evaluates, 1, func.instr(RunRow.evaluates, "/") - 1)
        which = func.coalesce(evaluated, case((has, RunRow.id)))
        found = self._all(select(which).where(among(RunRow.id, run_ids)))
        return {run_id for run_id in found if run_id is not None}

    def waiting_forks(self, run_id: str) -> list[RunRow]:
        """Return forks of the run that still need one of its checkpoints to start from.

        Without evaluations, which are cancelled with it.
        """
        with self._db.read() as session:
            return [fork for fork in waiting_forks(session, run_id) if not fork.evaluates]

    def set_pending_reasons(self, reasons: Mapping[str, str]) -> None:
        """Record why runs wait; write and announce only changes, of runs that still wait."""
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
            # One statement: a sweep may have thousands of trials.
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
