"""Rollouts: a run brought up in stages, each with runs of its own and gates to pass."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from sqlmodel import Session, col, select

from lehr.specs.rollout import RolloutSpec
from lehr.store.changes import Change
from lehr.store.records.groups import Groups
from lehr.store.records.run_rows import unused_id
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
        with self._db.read() as session:
            rows = session.exec(
                select(GateVerdict)
                .where(GateVerdict.rollout_id == rollout_id)
                .order_by(col(GateVerdict.id))
            )
            return list(rows.all())

    def of_runs(self, run_ids: Sequence[str]) -> dict[str, str]:
        """Map run ids to the id of the rollout that the run belongs to."""
        with self._db.read() as session:
            rows = session.exec(
                select(RolloutRun.run_id, RolloutRun.rollout_id).where(
                    col(RolloutRun.run_id).in_(run_ids)
                )
            )
            return dict(rows.all())

    def unended(self) -> list[str]:
        """Return the ids of the rollouts that have not ended, oldest first."""
        with self._db.read() as session:
            rows = session.exec(
                select(RolloutRow.id)
                .where(col(RolloutRow.outcome).is_(None))
                .order_by(col(RolloutRow.number))
            )
            return list(rows.all())


def stage_rows(session: Session, rollout_id: str) -> list[RolloutStage]:
    rows = session.exec(
        select(RolloutStage)
        .where(RolloutStage.rollout_id == rollout_id)
        .order_by(col(RolloutStage.number))
    )
    return list(rows.all())
