"""The one place that moves a run from state to state, and starts its attempts.

Every move is fenced: ``UPDATE ... WHERE id AND state AND attempt`` with the row count checked,
and its Transition in the same transaction. Who lost a race changes nothing and is told so.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from sqlalchemy import bindparam, update
from sqlmodel import Session, col, select

from lehr.control.lifecycle import Desired, RunState, can_transition
from lehr.errors import Conflict, InternalError
from lehr.store.base import StoreBase
from lehr.store.changes import Change
from lehr.store.ids import attempt_id
from lehr.store.records.runs import get_run
from lehr.store.tables import Attempt, RunRequest, RunRow, Transition

_NOT_SET_BY_TRANSITIONS = frozenset({"number", "id", "state", "attempt", "spec", "sweep_id"})
_SETTABLE = frozenset(RunRow.model_fields) - _NOT_SET_BY_TRANSITIONS


class Transitions(StoreBase):
    def transition(
        self,
        run_id: str,
        *,
        old: RunState,
        new: RunState,
        attempt: int,
        cause: str,
        message: str | None = None,
        actor: str,
        set: Mapping[str, Any] | None = None,  # noqa: A002 - reads as SQL does
    ) -> bool:
        """Change the run's state if it is still ``old`` with this attempt; else return False.

        ``cause`` and ``message`` become the run's cause and reason; ``set`` may change other
        columns in the same breath, such as a used-up retry.
        """
        with self.db.write(what=f"transition to {new.value}") as session:
            return transition_run(
                session,
                self,
                run_id,
                old=old,
                new=new,
                attempt=attempt,
                cause=cause,
                message=message,
                actor=actor,
                at=self.clock(),
                changes=set,
            )

    def begin_attempt(
        self,
        run_id: str,
        *,
        placement: list[dict[str, Any]],
        resume_from: str | None,
        token_sha256: str,
        actor: str = "dispatcher",
    ) -> Attempt | None:
        """From queued to starting, with the attempt's row and what it resumes from, at once.

        None if the run is no longer waiting, or no longer wanted.
        """
        at = self.clock()
        with self.db.write(what="begin_attempt") as session:
            run = get_run(session, run_id)
            number = run.attempt + 1
            if run.state != RunState.QUEUED.value or run.desired != Desired.RUN.value:
                return None
            moved = session.connection().execute(
                update(RunRow)
                .where(
                    col(RunRow.id) == run_id,
                    col(RunRow.state) == RunState.QUEUED.value,
                    col(RunRow.attempt) == run.attempt,
                    col(RunRow.desired) == Desired.RUN.value,
                )
                .values(
                    state=RunState.STARTING.value,
                    attempt=number,
                    cause="placed",
                    reason=None,
                    pending_reason=None,
                )
            )
            if moved.rowcount != 1:
                return None
            row = Attempt(
                id=attempt_id(run_id, number),
                run_id=run_id,
                number=number,
                placement=placement,
                token_sha256=token_sha256,
                resume_from=resume_from,
                created_at=at,
            )
            session.add(row)
            session.add(
                Transition(
                    run_id=run_id,
                    attempt=number,
                    old=RunState.QUEUED.value,
                    new=RunState.STARTING.value,
                    cause="placed",
                    actor=actor,
                    at=at,
                )
            )
            session.flush()
            session.refresh(run)
            self._run_changed(run)
            return row

    def transitions(self, run_id: str) -> list[Transition]:
        """Every move of the run, oldest first."""
        with self.db.read() as session:
            rows = session.exec(
                select(Transition).where(Transition.run_id == run_id).order_by(col(Transition.id))
            )
            return list(rows.all())

    # ------------------------------------------------------------------------------ requests

    def set_desired(
        self, run_id: str, desired: Desired, *, actor: str, message: str | None = None
    ) -> RunRow:
        """Records what is wanted of the run; the dispatcher carries it out.

        Asking twice is once. Raises Conflict for a run that ended, and for taking a cancel back.
        """
        with self.db.write(what=f"request to {desired.value}") as session:
            run = get_run(session, run_id)
            if RunState(run.state).ended:
                raise Conflict(f"{run.name} ({run.id}) has ended: it is {run.state}.")
            if run.desired == desired.value:
                return run
            final = {Desired.CANCEL.value, Desired.PRUNE.value}
            if run.desired in final and desired.value not in final:
                raise Conflict(f"{run.name} ({run.id}) is already being cancelled.")
            self._request(session, run, desired.value, actor, message)
            run.desired = desired.value
            session.add(run)
            self._run_changed(run)
            return run

    def order_checkpoint(
        self, run_id: str, *, actor: str = "user", message: str | None = None
    ) -> RunRow:
        """Asks the run's attempt to save a checkpoint now."""
        with self.db.write(what="order_checkpoint") as session:
            run = get_run(session, run_id)
            if not RunState(run.state).active:
                raise Conflict(
                    f"{run.name} ({run.id}) is {run.state}: only a running run can save."
                )
            self._request(session, run, "checkpoint", actor, message)
            run.checkpoint_seq += 1
            session.add(run)
            self._run_changed(run)
            return run

    def requests(self, run_id: str) -> list[RunRequest]:
        """What was asked of the run, oldest first."""
        with self.db.read() as session:
            rows = session.exec(
                select(RunRequest).where(RunRequest.run_id == run_id).order_by(col(RunRequest.id))
            )
            return list(rows.all())

    def set_pending_reasons(self, reasons: Mapping[str, str]) -> None:
        """Why runs wait. Written, and told, only where it changed and the run still waits."""
        if not reasons:
            return
        with self.db.read() as session:
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
        with self.db.write(durable=False) as session:
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
                self.db.changed(Change("run", run_id))
            for sweep_id in {sweep_id for _, sweep_id, _ in changed if sweep_id is not None}:
                self.db.changed(Change("sweep", sweep_id))

    def _request(
        self, session: Session, run: RunRow, kind: str, actor: str, message: str | None
    ) -> None:
        session.add(
            RunRequest(
                run_id=run.id,
                attempt=run.attempt,
                kind=kind,
                message=message,
                actor=actor,
                at=self.clock(),
            )
        )


def transition_run(
    session: Session,
    part: StoreBase,
    run_id: str,
    *,
    old: RunState,
    new: RunState,
    attempt: int,
    cause: str,
    message: str | None,
    actor: str,
    at: float,
    changes: Mapping[str, Any] | None = None,
) -> bool:
    """One fenced move within a transaction; see ``Moves.move``."""
    if not can_transition(old, new):
        raise InternalError(f"run {run_id}: there is no move from {old} to {new}")
    if (old, new) == (RunState.QUEUED, RunState.STARTING):
        raise InternalError(f"run {run_id}: only begin_attempt moves a run to starting")
    given = dict(changes or {})
    wrong = given.keys() - _SETTABLE
    if wrong:
        raise InternalError(f"run {run_id}: a move cannot set {', '.join(sorted(wrong))}")
    values: dict[str, Any] = {
        "state": new.value,
        "cause": cause,
        "reason": message,
        "pending_reason": None,
    }
    if new is RunState.QUEUED:
        values |= {"queued_at": at, "ended_at": None}
    if new.ended:
        values["ended_at"] = at
    values |= given
    moved = session.connection().execute(
        update(RunRow)
        .where(
            col(RunRow.id) == run_id, col(RunRow.state) == old.value, col(RunRow.attempt) == attempt
        )
        .values(**values)
    )
    if moved.rowcount != 1:
        return False
    run = get_run(session, run_id)
    session.refresh(run)
    if new is RunState.RUNNING and run.started_at is None:
        run.started_at = at
        session.add(run)
    session.add(
        Transition(
            run_id=run_id,
            attempt=attempt,
            old=old.value,
            new=new.value,
            cause=cause,
            message=message,
            actor=actor,
            at=at,
        )
    )
    session.flush()
    part._run_changed(run)  # noqa: SLF001 - a function of the same room
    return True
