"""The only code that changes a run's state and creates its attempts.

Every change is fenced: ``UPDATE ... WHERE id AND state AND attempt`` with the row count checked,
and its Transition is written in the same transaction. If another writer was faster, nothing changes
and the caller gets False or None.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

from sqlalchemy import ColumnElement, func, insert, update
from sqlmodel import Session, col, select

from lehr.control.lifecycle import Desired, RunState, can_transition
from lehr.errors import Conflict, InternalError
from lehr.specs.run import RunSpec
from lehr.store.database import Database, Records
from lehr.store.ids import attempt_id
from lehr.store.records.run_rows import (
    announce_run,
    announce_runs,
    get_run,
    insert_run,
    refuse_deleted,
)
from lehr.store.tables import Attempt, RunRow, Transition

_NOT_SET_BY_TRANSITIONS = frozenset({"number", "id", "state", "attempt", "spec", "sweep_id"})
_SETTABLE = frozenset(RunRow.model_fields) - _NOT_SET_BY_TRANSITIONS


class Why(NamedTuple):
    """Why a run changes its state, who changes it, and when."""

    cause: str
    message: str | None  # For people: it becomes the run's reason.
    actor: str
    at: float


class Transitions(Records):
    """A run's changes of state, each fenced."""

    def apply(
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
        columns in the same update, such as the number of used retries.
        """
        with self._db.write(what=f"transition to {new.value}") as session:
            why = Why(cause, message, actor, self._clock())
            return transition_run(session, self._db, run_id, attempt, old, new, why, set)

    def begin_attempt(
        self,
        run_id: str,
        *,
        placement: list[dict[str, Any]],
        resume_from: str | None,
        token_sha256: str,
        message: str | None = None,
        actor: str = "dispatcher",
    ) -> Attempt | None:
        """Move the run from queued to starting and create its attempt, in one transaction.

        Return None if the run is no longer queued, or its desired state is no longer ``run``.
        """
        with self._db.write(what="begin_attempt") as session:
            run = get_run(session, run_id)
            if run.state != RunState.QUEUED.value or run.desired != Desired.RUN.value:
                return None
            columns = {
                "placement": placement,
                "resume_from": resume_from,
                "token_sha256": token_sha256,
            }
            how = {"cause": "placed", "message": message, "actor": actor, "at": self._clock()}
            return self._begin(session, run, columns, new=RunState.STARTING, **how)

    def begin_external(
        self,
        spec: RunSpec,
        *,
        run_id: str,
        resume: bool,
        token_sha256: str,
        at: float,
        actor: str,
        provenance: Mapping[str, Any],
    ) -> Attempt:
        """Record a run that a process reports which Lehr did not start, or its next attempt.

        The same token gives the same attempt again. An id that is in use becomes another one,
        unless ``resume`` is requested. ``at``: when the process began, by its own clock.

        Raises:
            Conflict: the run to resume was started by Lehr, or was deleted.
        """
        with self._db.write(what="begin_external") as session:
            known = select(Attempt).where(Attempt.token_sha256 == token_sha256)
            if (row := session.exec(known).first()) is not None:
                return row
            at = min(at, self._clock())
            run = session.exec(select(RunRow).where(RunRow.id == run_id)).one_or_none()
            if run is None or not resume:
                own = run_id if run is None else None
                run = insert_run(
                    session, spec, at=at, actor=actor, provenance=provenance, run_id=own
                )
                run.started_at = at
            elif not run.stored.external:
                raise Conflict(
                    f"{run.name} ({run.id}) was started by Lehr, and is not resumed elsewhere."
                )
            refuse_deleted(session, run)
            columns = {"token_sha256": token_sha256, "dispatched_at": at}
            how = {"cause": "begun", "actor": actor, "at": at}
            return self._begin(session, run, columns, new=RunState.EXTERNAL, **how)

    def _begin(
        self, session: Session, run: RunRow, columns: dict[str, Any], *, new: RunState, **how: Any
    ) -> Attempt:
        """Move the run to ``new`` as ``how`` says; ``columns`` are those of its next attempt."""
        how["at"] = at = _in_order(session, col(RunRow.id) == run.id, how["at"])
        number, old = run.attempt + 1, run.state
        run.attempt, run.state, run.desired = number, new.value, Desired.RUN.value
        run.cause, run.reason, run.pending_reason, run.ended_at = how["cause"], None, None, None
        name = attempt_id(run.id, number)
        attempt = Attempt(id=name, run_id=run.id, number=number, created_at=at, **columns)
        move = Transition(run_id=run.id, attempt=number, old=old, new=new.value, **how)
        session.add_all([run, attempt, move])
        session.flush()
        announce_run(self._db, run)
        return attempt

    def of_run(self, run_id: str) -> list[Transition]:
        """List every transition of the run, oldest first."""
        return self._all(
            select(Transition).where(Transition.run_id == run_id).order_by(col(Transition.id))
        )


def transition_runs(
    session: Session,
    db: Database,
    where: ColumnElement[bool],
    old: RunState,
    new: RunState,
    why: Why,
    changes: Mapping[str, Any] | None = None,
) -> list[str]:
    """Apply one transition to every run of ``where`` that is ``old``; return the runs' ids.

    One statement selects and changes them, so that each is fenced by its state. ``changes``: other
    columns to set in it.
    """
    if not can_transition(old, new):
        raise InternalError(f"there is no transition from {old} to {new}")
    if (old, new) == (RunState.QUEUED, RunState.STARTING):
        raise InternalError("only begin_attempt makes a run starting")
    if new is RunState.EXTERNAL:
        raise InternalError("only begin_external makes a run external")
    why = why._replace(at=_in_order(session, where & (col(RunRow.state) == old.value), why.at))
    changed = session.execute(
        update(RunRow)
        .where(where, col(RunRow.state) == old.value)
        .values(_columns_of(new, why) | _settable(changes))
        .returning(col(RunRow.id), col(RunRow.attempt), col(RunRow.sweep_id)),
        execution_options={"synchronize_session": "fetch"},
    ).all()
    if not changed:
        return []
    common = {"old": old.value, "new": new.value, **why._asdict()}
    moves = [{"run_id": run_id, "attempt": attempt, **common} for run_id, attempt, _ in changed]
    session.connection().execute(insert(Transition), moves)
    announce_runs(db, [(run_id, sweep_id) for run_id, _, sweep_id in changed])
    return [run_id for run_id, _, _ in changed]


def transition_run(
    session: Session, db: Database, run_id: str, attempt: int, *transition: Any
) -> bool:
    """Apply one transition to a run, if it still has this attempt; see ``transition_runs``."""
    where = (col(RunRow.id) == run_id) & (col(RunRow.attempt) == attempt)
    return bool(transition_runs(session, db, where, *transition))


def _in_order(session: Session, where: ColumnElement[bool], at: float) -> float:
    """Return ``at``, or the time of these runs' last transition if the clock was set back since.

    So no run ends before it starts.
    """
    runs = select(RunRow.id).where(where)
    last = session.exec(
        select(func.max(Transition.at)).where(col(Transition.run_id).in_(runs))
    ).one()
    return at if last is None else max(at, last)


def _settable(changes: Mapping[str, Any] | None) -> dict[str, Any]:
    columns = dict(changes or {})
    if wrong := columns.keys() - _SETTABLE:
        raise InternalError(f"a transition cannot set {', '.join(sorted(wrong))}")
    return columns


def _columns_of(new: RunState, why: Why) -> dict[str, Any]:
    values: dict[str, Any] = {"state": new.value, "cause": why.cause, "reason": why.message}
    values["pending_reason"] = None
    if new is RunState.QUEUED:
        values |= {"queued_at": why.at, "ended_at": None}
    if new is RunState.RUNNING:
        values["started_at"] = func.coalesce(col(RunRow.started_at), why.at)
    if new.ended:
        values["ended_at"] = why.at
    return values
