"""Rollouts: a run brought up in stages, each with runs of its own and gates to pass."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Literal

from sqlalchemy import func
from sqlmodel import Session, col, select

from lehr.specs.rollout import RolloutSpec
from lehr.specs.run import RunSpec
from lehr.store.changes import Change
from lehr.store.database import Records
from lehr.store.records.lists import Groups, get_group
from lehr.store.records.requests import cancel_runs
from lehr.store.records.run_rows import among, announce_run, insert_run, unused_id
from lehr.store.tables import GateVerdict, RolloutRow, RolloutRun, RolloutStage, RunRow


class Rollouts(Groups[RolloutRow]):
    """Rollouts, their stages, runs and gate verdicts: created, and read by rollout or by run."""

    _table = RolloutRow

    def create(
        self,
        spec: RolloutSpec,
        stages: Sequence[str],
        *,
        actor: str = "user",
        provenance: Mapping[str, Any] | None = None,
    ) -> RolloutRow:
        """Record the rollout and its stages, in order; their runs are submitted later."""
        at = self._clock()
        with self._db.write() as session:
            rollout = RolloutRow(
                id=unused_id(session, RolloutRow),
                name=spec.name,
                project=spec.project,
                spec=spec.model_dump(mode="json", exclude_unset=True),
                tags=list(spec.tags),
                note=spec.notes,
                provenance=dict(provenance or {}),
                submitted_by=actor,
                created_at=at,
            )
            session.add(rollout)
            session.flush()
            for number, name in enumerate(stages, start=1):
                session.add(RolloutStage(rollout_id=rollout.id, number=number, name=name))
            session.flush()
            self._db.changed(Change("rollout", rollout.id))
            return rollout

    def stages(self, rollout_id: str) -> list[RolloutStage]:
        """Return the rollout's stages in order."""
        with self._db.read() as session:
            return stage_rows(session, rollout_id)

    def runs(self, rollout_id: str) -> list[tuple[RolloutRun, RunRow]]:
        """Return the rollout's runs in order of submission."""
        with self._db.read() as session:
            rows = session.exec(
                select(RolloutRun, RunRow)
                .join(RunRow, col(RunRow.id) == col(RolloutRun.run_id))
                .where(RolloutRun.rollout_id == rollout_id)
                .order_by(col(RolloutRun.id))
            )
            return [(link, run) for link, run in rows.all()]

    def verdicts(self, rollout_id: str) -> list[GateVerdict]:
        """Return the rollout's verdicts in the order in which they were recorded."""
        return self._all(
            select(GateVerdict)
            .where(GateVerdict.rollout_id == rollout_id)
            .order_by(col(GateVerdict.id))
        )

    def of_runs(self, run_ids: Sequence[str]) -> dict[str, str]:
        """Map run ids to the id of the rollout that the run belongs to."""
        links = self._all(select(RolloutRun).where(among(RolloutRun.run_id, run_ids)))
        return {link.run_id: link.rollout_id for link in links}

    def unended(self) -> list[str]:
        """Return the ids of the rollouts that have not ended, oldest first."""
        return self._all(
            select(RolloutRow.id)
            .where(col(RolloutRow.outcome).is_(None))
            .order_by(col(RolloutRow.number))
        )


def stage_rows(session: Session, rollout_id: str) -> list[RolloutStage]:
    rows = session.exec(
        select(RolloutStage)
        .where(RolloutStage.rollout_id == rollout_id)
        .order_by(col(RolloutStage.number))
    )
    return list(rows.all())


PASSED, FAILED, CANCELLED = "passed", "failed", "cancelled"
ACTOR = "rollout"


class RolloutProgress(Records):
    """Changes of a rollout's stages, each made at most once."""

    def submit_run(
        self,
        rollout_id: str,
        stage: int,
        role: str,
        spec: RunSpec,
        *,
        resume_from: str | None = None,
        forked_from: str | None = None,
        provenance: Mapping[str, Any] | None = None,
    ) -> RunRow | None:
        """Record and queue a stage's run, one per role.

        Return None if the run exists already, the rollout or the stage has ended, or an earlier
        stage has not passed.
        """
        at = self._clock()
        with self._db.write(what="submit_stage_run") as session:
            rollout = get_group(session, RolloutRow, rollout_id)
            now = _current(stage_rows(session, rollout_id))
            if now is None or now.number != stage or rollout.outcome is not None:
                return None
            there = select(RolloutRun.id).where(
                RolloutRun.rollout_id == rollout_id,
                RolloutRun.stage == stage,
                RolloutRun.role == role,
            )
            if session.exec(there).first() is not None:
                return None
            run = insert_run(
                session,
                spec,
                at=at,
                actor=ACTOR,
                submitted_by=rollout.submitted_by,
                provenance={**rollout.provenance, **(provenance or {})},
                resume_from=resume_from,
                forked_from=forked_from,
            )
            session.add(RolloutRun(rollout_id=rollout_id, stage=stage, role=role, run_id=run.id))
            if now.started_at is None:
                now.started_at = at
                session.add(now)
            session.flush()
            announce_run(self._db, run)
            self._db.changed(Change("rollout", rollout_id))
            return run

    def record_verdicts(self, rollout_id: str, stage: int, found: Sequence[GateVerdict]) -> int:
        """Record verdicts and return how many were new; a recorded verdict never changes."""
        with self._db.write(what="record_verdicts") as session:
            if get_group(session, RolloutRow, rollout_id).outcome is not None:
                return 0
            known = set(
                session.exec(
                    select(GateVerdict.gate).where(
                        GateVerdict.rollout_id == rollout_id, GateVerdict.stage == stage
                    )
                ).all()
            )
            new = [verdict for verdict in found if verdict.gate not in known]
            for verdict in new:
                verdict.rollout_id, verdict.stage, verdict.at = rollout_id, stage, self._clock()
                session.add(verdict)
            if new:
                session.flush()
                self._db.changed(Change("rollout", rollout_id))
            return len(new)

    def pass_stage(self, rollout_id: str, stage: int) -> bool:
        """Pass a stage, so that the next one may start; the last one passes the rollout.

        Return False if the stage or the rollout has ended already, or one of its gates failed.
        """
        at = self._clock()
        with self._db.write(what="pass_stage") as session:
            rollout = get_group(session, RolloutRow, rollout_id)
            stages = stage_rows(session, rollout_id)
            now = _current(stages)
            if now is None or now.number != stage or rollout.outcome is not None:
                return False
            failed = select(func.count()).where(
                GateVerdict.rollout_id == rollout_id,
                GateVerdict.stage == stage,
                GateVerdict.verdict == FAILED,
            )
            if session.exec(failed).one():
                return False
            now.outcome, now.ended_at = PASSED, at
            session.add(now)
            if now is stages[-1]:
                rollout.outcome, rollout.ended_at = PASSED, at
                session.add(rollout)
            self._db.changed(Change("rollout", rollout_id))
            return True

    def end(
        self,
        rollout_id: str,
        outcome: Literal["failed", "cancelled"],
        reason: str,
        *,
        stage: int | None = None,
        actor: str = ACTOR,
    ) -> bool:
        """End the rollout and its current stage, and cancel its runs that have not ended.

        ``stage``: only if this is the current one. Return False if it has ended already.
        """
        at = self._clock()
        with self._db.write(what="end_rollout") as session:
            rollout = get_group(session, RolloutRow, rollout_id)
            now = _current(stage_rows(session, rollout_id))
            at_another = stage is not None and (now is None or now.number != stage)
            if rollout.outcome is not None or at_another:
                return False
            where = f"stage {now.name}, " if now is not None and outcome == FAILED else ""
            rollout.outcome, rollout.reason, rollout.ended_at = outcome, f"{where}{reason}", at
            session.add(rollout)
            if now is not None:
                now.outcome, now.reason, now.ended_at = outcome, reason, at
                session.add(now)
            its_runs = select(RolloutRun.run_id).where(RolloutRun.rollout_id == rollout.id)
            message = f"its rollout {outcome}: {reason}"
            cancel_runs(
                session,
                self._db,
                col(RunRow.id).in_(its_runs),
                message=message if outcome == FAILED else "rollout cancelled",
                actor=actor,
                at=at,
            )
            self._db.changed(Change("rollout", rollout_id))
            return True


def _current(stages: Sequence[RolloutStage]) -> RolloutStage | None:
    """Return the first stage that has not passed; None if it has ended, or all have passed."""
    first = next((one for one in stages if one.outcome != PASSED), None)
    return first if first is not None and first.outcome is None else None
