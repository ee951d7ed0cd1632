"""Requests to a run: to pause, resume, cancel or prune it, or to save a checkpoint now."""

from __future__ import annotations

from collections.abc import Iterable

from sqlalchemy import ColumnElement, insert, update
from sqlmodel import Session, col, select

from lehr.control.lifecycle import ENDED, Desired, RunState
from lehr.errors import Conflict
from lehr.store.database import Database, Records
from lehr.store.records.run_rows import announce_run, announce_runs, get_run
from lehr.store.records.transitions import Why, transition_runs
from lehr.store.tables import RunRequest, RunRow

WITHOUT_ATTEMPT = (RunState.QUEUED, RunState.PAUSED)
"""The states in which a run ends without a process to stop."""


class Requests(Records):
    """Requests to runs; the dispatcher carries them out."""

    def set_desired(
        self, run_id: str, desired: Desired, *, actor: str, message: str | None = None
    ) -> RunRow:
        """Record the desired state of the run; the dispatcher carries it out.

        Repeating it changes nothing. Raises Conflict if the run has ended or is being cancelled.
        """
        with self._db.write(what=f"request to {desired.value}") as session:
            run = get_run(session, run_id)
            if RunState(run.state).ended:
                raise Conflict(f"{run.name} ({run.id}) has ended: it is {run.state}.")
            if run.state == RunState.EXTERNAL and desired is Desired.PAUSE:
                raise Conflict(
                    f"{run.name} ({run.id}) is external: only its own process could pause it."
                )
            if run.desired == desired.value:
                return run
            final = {Desired.CANCEL.value, Desired.PRUNE.value}
            if run.desired in final and desired.value not in final:
                raise Conflict(f"{run.name} ({run.id}) is already being cancelled.")
            run.desired = desired.value
            return self._add(session, run, desired.value, message, actor)

    def order_checkpoint(
        self, run_id: str, *, actor: str = "user", message: str | None = None
    ) -> RunRow:
        """Request that the run's attempt saves a checkpoint now."""
        with self._db.write(what="order_checkpoint") as session:
            run = get_run(session, run_id)
            if not RunState(run.state).active:
                raise Conflict(
                    f"{run.name} ({run.id}) is {run.state}: only a running run can save."
                )
            run.checkpoint_seq += 1
            return self._add(session, run, "checkpoint", message, actor)

    def prune(self, run_id: str, attempt: int, message: str) -> bool:
        """Request that a running trial ends now; False if the run has another attempt by now."""
        with self._db.write(what="prune_run") as session:
            run = get_run(session, run_id)
            now = (run.state, run.attempt, run.desired)
            if now != (RunState.RUNNING.value, attempt, Desired.RUN.value):
                return False
            run.desired = Desired.PRUNE.value
            self._add(session, run, Desired.PRUNE.value, message, "sweep")
            return True

    def note(self, run_id: str, kind: str, *, actor: str, message: str) -> None:
        """Record something about a run that asks nothing of the dispatcher."""
        with self._db.write() as session:
            self._add(session, get_run(session, run_id), kind, message, actor)

    def _add(
        self, session: Session, run: RunRow, kind: str, message: str | None, actor: str
    ) -> RunRow:
        session.add(run)
        add_request(session, run, kind, message, actor, self._clock())
        announce_run(self._db, run)
        return run

    def of_run(self, run_id: str) -> list[RunRequest]:
        """Return the requests to the run, oldest first."""
        return self._all(
            select(RunRequest).where(RunRequest.run_id == run_id).order_by(col(RunRequest.id))
        )


def cancel_runs(
    session: Session,
    db: Database,
    where: ColumnElement[bool],
    *,
    message: str,
    actor: str,
    at: float,
) -> None:
    """Request the end of every run of ``where`` that has not ended, if that is not requested yet.

    Queued and paused runs have no attempt to stop: they are cancelled at once. The number of
    statements does not depend on the number of runs.
    """
    living = col(RunRow.state).not_in([state.value for state in ENDED])
    requested = session.execute(
        update(RunRow)
        .where(where, living, col(RunRow.desired) != Desired.CANCEL.value)
        .values(desired=Desired.CANCEL.value)
        .returning(col(RunRow.id), col(RunRow.attempt), col(RunRow.sweep_id)),
        execution_options={"synchronize_session": "fetch"},
    ).all()
    if requested:
        runs = [(run_id, attempt) for run_id, attempt, _ in requested]
        add_requests(session, runs, Desired.CANCEL.value, message, actor, at)
        announce_runs(db, [(run_id, sweep_id) for run_id, _, sweep_id in requested])
    for state in WITHOUT_ATTEMPT:
        why = Why(Desired.CANCEL.value, message, actor, at)
        transition_runs(session, db, where, state, RunState.CANCELLED, why)


def add_request(
    session: Session, run: RunRow, kind: str, message: str | None, actor: str, at: float
) -> None:
    add_requests(session, [(run.id, run.attempt)], kind, message, actor, at)


def add_requests(
    session: Session,
    runs: Iterable[tuple[str, int]],
    kind: str,
    message: str | None,
    actor: str,
    at: float,
) -> None:
    """Record the same request for many runs, in one statement. ``runs``: id and attempt of each."""
    common = {"kind": kind, "message": message, "actor": actor, "at": at}
    rows = [{"run_id": run_id, "attempt": attempt, **common} for run_id, attempt in runs]
    if rows:
        session.connection().execute(insert(RunRequest), rows)
