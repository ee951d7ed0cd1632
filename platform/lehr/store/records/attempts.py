"""Attempts: the launches of a run."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from typing import Any, NamedTuple, Self

from sqlalchemy import Integer, bindparam, case, func, update
from sqlalchemy import select as sa_select
from sqlmodel import Session, col, select

from lehr.control.lifecycle import RunState
from lehr.errors import InternalError, NotFound
from lehr.store.database import Records
from lehr.store.records.run_rows import among, announce_run, get_run, is_deleted
from lehr.store.tables import Attempt, RunRow, Transition

_FIXED = frozenset({"id", "run_id", "number", "token_sha256", "created_at", "events_applied"})
_UPDATABLE = frozenset(Attempt.model_fields) - _FIXED


_BEGAN = func.coalesce(col(Attempt.dispatched_at), col(Attempt.created_at))
_ENDED = case(
    (col(Attempt.exited_at).is_not(None), col(Attempt.exited_at)),
    # One that was given up has no exit: its last heartbeat is the last that is known.
    (col(Attempt.open).is_(False), func.coalesce(col(Attempt.last_heartbeat_at), _BEGAN)),
    else_=None,
)


class GpuTime(NamedTuple):
    """The time for which an attempt held its GPUs; in seconds since 1970."""

    gpus: int
    began: float  # When its start was confirmed; when it was created, if that is not known.
    ended: float | None
    """When its processes had ended, or were last known to live; None while they live."""

    def hours(self, now: float) -> float:
        """Return its GPU-hours until then."""
        until = now if self.ended is None else self.ended
        return self.gpus * max(until - self.began, 0.0) / 3600


class GpuUse(NamedTuple):
    """What attempts have used; a paused or queued run has none that holds a GPU."""

    hours: float = 0.0
    attempts: int = 0
    until: float | None = None  # When it was computed, if it grows: an attempt lives.

    @classmethod
    def of(cls, times: Sequence[GpuTime], now: float) -> Self:
        lives = any(time.ended is None for time in times)
        return cls(sum(time.hours(now) for time in times), len(times), now if lives else None)


class Attempts(Records):
    """The launches of runs: their facts, heartbeats and ends."""

    def get(self, attempt_id: str) -> Attempt:
        with self._db.read() as session:
            return get_attempt(session, attempt_id)

    def of_deleted_run(self, attempt_id: str) -> bool:
        """Return whether the attempt's run was deleted.

        Raises:
            NotFound: there is no such attempt.
        """
        with self._db.read() as session:
            return is_deleted(session, get_attempt(session, attempt_id).run_id)

    def unrecorded(self, attempt_ids: Collection[str]) -> set[str]:
        """Return those of these attempts that this record never had.

        An attempt is recorded before its node is called, so another record began them: one that
        was lost, or a newer one than the backup that was restored.
        """
        if not attempt_ids:
            return set()
        known = self._all(select(Attempt.id).where(col(Attempt.id).in_(attempt_ids)))
        return set(attempt_ids) - set(known)

    def of_run(self, run_id: str) -> list[Attempt]:
        """Return the run's attempts, oldest first."""
        return self._all(
            select(Attempt).where(Attempt.run_id == run_id).order_by(col(Attempt.number))
        )

    def use(self, run_ids: Sequence[str]) -> GpuUse:
        """Return what all attempts of these runs have used together."""
        times = self.times_by_run(run_ids).values()
        return GpuUse.of([time for own in times for time in own], self._clock())

    def use_by_run(self, run_ids: Sequence[str]) -> dict[str, GpuUse]:
        """Return the same by run; a run without an attempt has used nothing."""
        now = self._clock()
        return {run: GpuUse.of(own, now) for run, own in self.times_by_run(run_ids).items()}

    def times_by_run(self, run_ids: Sequence[str]) -> dict[str, list[GpuTime]]:
        """Return how long each attempt of each run held its GPUs, in no order."""
        columns = sa_select(col(Attempt.run_id), col(Attempt.placement), _BEGAN, _ENDED)
        times: dict[str, list[GpuTime]] = {run_id: [] for run_id in run_ids}
        with self._db.read() as session:
            rows = session.execute(columns.where(among(Attempt.run_id, run_ids)))
            for run_id, placement, began, ended in rows:
                gpus = sum(len(share["gpus"]) for share in placement)
                times[run_id].append(GpuTime(gpus, began, ended))
        return times

    def held_since(self, began: float) -> list[dict[str, Any]]:
        """Return what has held GPUs since then: its placement, and the fields of ``RunSpan``.

        Times are whole seconds.
        """
        run_id, number, new = map(col, (Transition.run_id, Transition.attempt, Transition.new))
        trained = sa_select(func.round(func.min(Transition.at))).where(
            run_id == Attempt.run_id, number == Attempt.number, new == RunState.RUNNING.value
        )
        who = map(col, (Attempt.run_id, RunRow.name, RunRow.project, RunRow.state))
        began_at, ended_at = (func.round(at) for at in (_BEGAN, _ENDED))
        times: tuple[Any, ...] = (began_at.label("began"), ended_at.label("ended"))
        wanted = (
            sa_select(*who, col(RunRow.submitted_by).label("person"), *times)
            .add_columns(col(Attempt.placement), trained.scalar_subquery().label("trains_at"))
            .join(RunRow, col(RunRow.id) == Attempt.run_id)
            .where(col(Attempt.exited_at).is_(None) | (col(Attempt.exited_at) > began))
        )
        with self._db.read() as session:
            found = session.execute(wanted)
            rows = [dict(zip(found.keys(), row, strict=True)) for row in found]
        return [row for row in rows if row["ended"] is None or row["ended"] > began]

    def newest(self, run_ids: list[str]) -> dict[str, Attempt]:
        """Map each of these runs that has an attempt to its newest one."""
        newest = (
            select(Attempt)
            .join(RunRow, col(RunRow.id) == col(Attempt.run_id))
            .where(col(RunRow.id).in_(run_ids), col(Attempt.number) == col(RunRow.attempt))
        )
        return {row.run_id: row for row in self._all(newest)}

    def list_open(self, run_ids: Collection[str] | None = None) -> list[Attempt]:
        """List attempts whose process may live or whose streams are incomplete, oldest first.

        ``run_ids``: only attempts of these runs, at most a few hundred.
        """
        wanted = select(Attempt).where(col(Attempt.open).is_(True))
        if run_ids is not None:
            wanted = wanted.where(col(Attempt.run_id).in_(run_ids))
        return self._all(wanted.order_by(col(Attempt.created_at), col(Attempt.id)))

    def recently_ended(self, limit: int = 200) -> list[Attempt]:
        """Return the attempts that ended last, newest first."""
        return self._all(
            select(Attempt)
            .where(col(Attempt.exited_at).is_not(None))
            .order_by(col(Attempt.exited_at).desc())
            .limit(limit)
        )

    def update(self, attempt_id: str, **columns: Any) -> Attempt:
        """Record facts about an attempt, such as when it was dispatched or how it exited."""
        wrong = columns.keys() - _UPDATABLE
        if wrong:
            raise InternalError(f"attempt {attempt_id}: cannot update {', '.join(sorted(wrong))}")
        with self._db.write(what=f"update of {min(columns)}") as session:
            row = get_attempt(session, attempt_id)
            for name, value in columns.items():
                setattr(row, name, value)
            if row.exited_at is not None:  # The clock may have been set back since its start.
                row.exited_at = max(row.exited_at, row.dispatched_at or row.exited_at)
            session.add(row)
            session.flush()
            announce_run(self._db, get_run(session, row.run_id))
            return row

    def with_run(self, attempt_id: str) -> tuple[Attempt, RunRow]:
        """Return the attempt and its run, read together."""
        with self._db.read() as session:
            attempt = get_attempt(session, attempt_id)
            return attempt, get_run(session, attempt.run_id)

    def record_heartbeats(self, heartbeats: Mapping[str, tuple[float, int | None]]) -> None:
        """Record the time and the step of the newest heartbeat of each of these attempts.

        A step lower than the recorded one is ignored; so is an attempt that was deleted.
        """
        if not heartbeats:
            return
        rows = [
            {"which": attempt_id, "at": at, "step": step}
            for attempt_id, (at, step) in heartbeats.items()
        ]
        # Each heartbeat replaces the one before: not worth a flush to disk.
        with self._db.write(durable=False) as session:
            session.connection().execute(
                update(Attempt)
                .where(col(Attempt.id) == bindparam("which"))
                .values(last_heartbeat_at=bindparam("at"), **newest_step()),
                rows,
            )

    def close(self, attempt_id: str) -> Attempt:
        """Close an attempt whose process has ended and whose streams are complete or given up."""
        with self._db.write(what="close_attempt") as session:
            row = get_attempt(session, attempt_id)
            row.open = False
            session.add(row)
            announce_run(self._db, get_run(session, row.run_id))
            return row


def newest_step() -> dict[str, Any]:
    """Return the columns of the last step for an update of attempts. A lower step changes nothing.

    The parameters are ``step``, which may be None, and ``at``, the time that belongs to it.
    """
    newer = bindparam("step", type_=Integer) > func.coalesce(col(Attempt.last_step), -1)
    return {
        "last_step": case((newer, bindparam("step")), else_=col(Attempt.last_step)),
        "last_step_at": case((newer, bindparam("at")), else_=col(Attempt.last_step_at)),
    }


def get_attempt(session: Session, attempt_id: str) -> Attempt:
    row = session.get(Attempt, attempt_id)
    if row is None:
        raise NotFound(f"There is no attempt {attempt_id!r}.")
    return row
