"""Rollouts: a run brought up in stages, each with runs of its own and gates to pass."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from sqlmodel import Session, col, select

from lehr.errors import NotFound
from lehr.specs.rollout import RolloutSpec
from lehr.store.changes import Change
from lehr.store.database import Clock, Database
from lehr.store.records.lists import RowPage, fetch_page, filters
from lehr.store.records.refs import find
from lehr.store.records.run_rows import unused_id
from lehr.store.tables import GateVerdict, RolloutRow, RolloutRun, RolloutStage, RunRow


class Rollouts:
    """Rollouts, their stages, runs and gate verdicts: created, found, listed, archived."""

    def __init__(self, db: Database, clock: Clock) -> None:
        self._db = db
        self._clock = clock

    def create(
        self,
        spec: RolloutSpec,
        stages: Sequence[str],
        *,
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
                provenance=dict(provenance or {}),
                created_at=at,
            )
            session.add(rollout)
            session.flush()
            for number, name in enumerate(stages, start=1):
                session.add(RolloutStage(rollout_id=rollout.id, number=number, name=name))
            session.flush()
            self._db.changed(Change("rollout", rollout.id))
            return rollout

    def get(self, rollout_id: str) -> RolloutRow:
        """Return the rollout with this whole id."""
        with self._db.read() as session:
            return get_rollout(session, rollout_id)

    def find(self, ref: str) -> RolloutRow:
        """Find by id, name (the newest wins), or an id's beginning; NotFound names near ones."""
        with self._db.read() as session:
            return find(session, RolloutRow, ref, "rollout")

    def page(
        self,
        *,
        project: str | None = None,
        name: str | None = None,
        tag: str | None = None,
        archived: bool | None = False,
        search: str | None = None,
        limit: int = 100,
        cursor: str | None = None,
    ) -> RowPage[RolloutRow]:
        """Return a page of rollouts, newest first."""
        wanted = filters(
            RolloutRow, project=project, name=name, tag=tag, archived=archived, search=search
        )
        with self._db.read() as session:
            return fetch_page(session, RolloutRow, wanted, limit, cursor)

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

    def set_archived(self, rollout_id: str, archived: bool) -> RolloutRow:
        """Archive or unarchive a rollout; its runs do not change."""
        with self._db.write() as session:
            found = get_rollout(session, rollout_id)
            found.archived = archived
            session.add(found)
            self._db.changed(Change("rollout", found.id))
            return found


def get_rollout(session: Session, rollout_id: str) -> RolloutRow:
    found = session.exec(select(RolloutRow).where(RolloutRow.id == rollout_id)).one_or_none()
    if found is None:
        raise NotFound(f"There is no rollout {rollout_id!r}.")
    return found


def stage_rows(session: Session, rollout_id: str) -> list[RolloutStage]:
    rows = session.exec(
        select(RolloutStage)
        .where(RolloutStage.rollout_id == rollout_id)
        .order_by(col(RolloutStage.number))
    )
    return list(rows.all())
