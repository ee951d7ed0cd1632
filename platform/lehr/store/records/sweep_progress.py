"""The progress of a sweep: add trials, stop, retry; each change is fenced by an expected state."""

from __future__ import annotations

from collections.abc import Sequence

from sqlalchemy import func, update
from sqlmodel import Session, col, select

from lehr.control.lifecycle import RunState
from lehr.control.retries import RETRY_RESET
from lehr.control.sweeps import OF_TRUNK, FollowTrunk
from lehr.errors import Conflict
from lehr.specs.sweep import SweepSpec
from lehr.specs.sweep_expand import TrialSpec
from lehr.store.changes import Change
from lehr.store.database import Records
from lehr.store.records.lists import get_group
from lehr.store.records.requests import WITHOUT_ATTEMPT, cancel_runs
from lehr.store.records.run_rows import DELETE, announce_runs, get_run, trunk_id, waits_for_trunk
from lehr.store.records.transitions import Why, transition_runs
from lehr.store.records.trial_rows import TrialRows, replace_runs
from lehr.store.tables import RunRequest, RunRow, SweepRow, Trial

SWEEP_STOPPED = "sweep_stopped"
"""The cause of a run that never started because its sweep was stopped."""


class SweepProgress(Records):
    """Changes of a sweep's trials, each fenced by an expected state."""

    def add_trials(
        self,
        sweep_id: str,
        trials: Sequence[TrialSpec] | TrialRows,
        *,
        known: int,
        actor: str,
        spec: SweepSpec | None = None,
    ) -> bool:
        """Add trials with the next numbers; False if the sweep does not have ``known`` trials.

        Their runs have the provenance of the sweep's first run.

        ``spec``: the sweep's new spec, when a user extended it; that reopens the sweep.
        """
        rows = TrialRows.of(trials)
        at = self._clock()
        with self._db.write(what="add_trials") as session:
            sweep = get_group(session, SweepRow, sweep_id)
            count = session.exec(
                select(func.count()).select_from(Trial).where(Trial.sweep_id == sweep_id)
            ).one()
            if count != known or (spec is None and sweep.stopped is not None):
                return False
            if spec is not None:
                sweep.spec = spec.model_dump(mode="json")
                _reopen(session, sweep, at)
            first_run = select(RunRow.provenance_sha256).where(RunRow.sweep_id == sweep_id)
            rows.insert(
                session,
                self._db,
                sweep_id,
                first=known + 1,
                at=at,
                actor=actor,
                # A search adds trials for the one who launched it.
                submitted_by=actor if spec is not None else sweep.submitted_by,
                provenance_sha256=session.exec(first_run.order_by(col(RunRow.number))).first(),
                trunk=session.scalar(select(trunk_id(sweep_id))),
            )
            self._db.changed(Change("sweep", sweep_id))
            return True

    def follow_trunk(self, action: FollowTrunk, *, actor: str) -> bool:
        """Let the trials that wait for the trunk follow its state; False if it has another by now.

        They start from its last checkpoint. If it ended without one, they end, too; if it was
        queued again, they wait again.
        """
        sweep_id, trunk = action.sweep_id, action.trunk
        at = self._clock()
        with self._db.write(what="follow_trunk") as session:
            if get_run(session, trunk.run_id).state != trunk.state.value:
                return False
            where = waiting = (col(RunRow.sweep_id) == sweep_id) & waits_for_trunk()
            old, new = RunState.QUEUED, RunState.FAILED
            if trunk.base is not None or not trunk.state.ended:
                where = waiting & (col(RunRow.cause) == OF_TRUNK)
                old, new = new, old
            elif trunk.state is RunState.CANCELLED:
                new = trunk.state
            why = Why(OF_TRUNK, action.why, actor, at)
            transition_runs(session, self._db, where, old, new, why)
            if trunk.base is not None:
                based = session.execute(
                    update(RunRow)
                    .where(waiting)
                    .values(resume_from=trunk.base)
                    .returning(col(RunRow.id)),
                    execution_options={"synchronize_session": "fetch"},
                ).all()
                announce_runs(self._db, [(run_id, sweep_id) for (run_id,) in based])
            self._db.changed(Change("sweep", sweep_id))
            return True

    def stop(self, sweep_id: str, why: str, *, actor: str, waiting_too: bool = True) -> bool:
        """Start no further trial: queued ones are cancelled, running ones go on to their end.

        With ``waiting_too=False`` queued trials stay, and only no new ones are added.
        Return False if it was stopped before.
        """
        at = self._clock()
        with self._db.write(what="stop_sweep") as session:
            sweep = get_group(session, SweepRow, sweep_id)
            if sweep.stopped is not None:
                return False
            sweep.stopped = why
            session.add(sweep)
            where = col(RunRow.sweep_id) == sweep_id
            cause = Why(SWEEP_STOPPED, f"its sweep was stopped: {why}", actor, at)
            for state in WITHOUT_ATTEMPT if waiting_too else ():
                transition_runs(session, self._db, where, state, RunState.CANCELLED, cause)
            self._db.changed(Change("sweep", sweep_id))
            return True

    def cancel(self, sweep_id: str, *, actor: str) -> None:
        """Cancel all of the sweep's runs that have not ended; it may still add trials."""
        with self._db.write() as session:
            cancel_runs(
                session,
                self._db,
                col(RunRow.sweep_id) == sweep_id,
                message="sweep cancelled",
                actor=actor,
                at=self._clock(),
            )

    def retry_trials(self, sweep_id: str, *, actor: str) -> list[str]:
        """Retry exactly the failed trials, and those that never ran because the sweep was stopped.

        A failed run resumes from its last checkpoint, with full retry budgets. A trial whose run
        was cancelled before it started gets a new run; so does a failed one whose data was
        deleted. Return the runs' ids.

        Raises:
            Conflict: no trial failed.
        """
        at = self._clock()
        with self._db.write() as session:
            sweep = get_group(session, SweepRow, sweep_id)
            deleted = select(RunRequest.run_id).where(RunRequest.kind == DELETE)
            mine = select(Trial.run_id).where(Trial.sweep_id == sweep_id)
            queued = transition_runs(
                session,
                self._db,
                # Its trunk, too.
                (col(RunRow.sweep_id) == sweep_id) & col(RunRow.id).not_in(deleted),
                RunState.FAILED,
                RunState.QUEUED,
                Why("retry", "retried with its sweep's failed trials", actor, at),
                RETRY_RESET,
            )
            # What is failed still is deleted; what was stopped has no checkpoint.
            stopped = (col(RunRow.state) == RunState.CANCELLED.value) & (
                col(RunRow.cause) == SWEEP_STOPPED
            )
            over = select(Trial.run_id).join(RunRow, col(RunRow.id) == col(Trial.run_id))
            replaced = replace_runs(
                session,
                self._db,
                sweep_id,
                session.exec(
                    over.where(
                        Trial.sweep_id == sweep_id,
                        stopped | (col(RunRow.state) == RunState.FAILED.value),
                    ).order_by(col(Trial.number))
                ).all(),
                at=at,
                actor=actor,
            )
            chosen = {*queued, *replaced.values()}
            again = [
                run_id
                for run_id in session.exec(mine.order_by(col(Trial.number))).all()
                if run_id in chosen
            ]
            if not chosen:
                raise Conflict(f"{sweep.name} ({sweep.id}) has no failed trial.")
            _reopen(session, sweep, at)
            self._db.changed(Change("sweep", sweep_id))
            return again


def _reopen(session: Session, sweep: SweepRow, at: float) -> None:
    sweep.stopped = None
    sweep.reopened_at = at
    session.add(sweep)
