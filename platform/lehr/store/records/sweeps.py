"""Sweeps: a set of trials, each a point of the space with a run of its own."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from sqlalchemy import func
from sqlmodel import col, select

from lehr.control.lifecycle import ENDED
from lehr.specs.run import RunSpec
from lehr.specs.sweep import SweepSpec
from lehr.store.changes import Change
from lehr.store.records.groups import Groups
from lehr.store.records.run_rows import insert_run, unused_id
from lehr.store.tables import RunRow, SweepRow, Trial


class Sweeps(Groups[SweepRow]):
    """Sweeps and their trials: created, and read by sweep or by run."""

    _table = SweepRow

    def create(
        self,
        spec: SweepSpec,
        trials: Sequence[tuple[dict[str, Any], RunSpec]],
        *,
        actor: str = "user",
        provenance: Mapping[str, Any] | None = None,
    ) -> SweepRow:
        """Record the sweep, its trials and their runs: all of them, or nothing."""
        at = self._clock()
        with self._db.write() as session:
            sweep = SweepRow(
                id=unused_id(session, SweepRow),
                name=spec.name,
                project=spec.project,
                spec=spec.model_dump(mode="json"),
                tags=list(spec.tags),
                created_at=at,
            )
            session.add(sweep)
            session.flush()
            for number, (parameters, run_spec) in enumerate(trials, start=1):
                run = insert_run(
                    session,
                    run_spec,
                    at=at,
                    actor=actor,
                    provenance=provenance,
                    sweep_id=sweep.id,
                )
                session.add(
                    Trial(sweep_id=sweep.id, number=number, parameters=parameters, run_id=run.id)
                )
                self._db.changed(Change("run", run.id))
            session.flush()
            self._db.changed(Change("sweep", sweep.id))
            return sweep

    def unended(self) -> list[str]:
        """Return the ids of sweeps that go on: a run has not ended, or TPE may add trials."""
        with self._db.read() as session:
            live = select(RunRow.sweep_id).where(
                col(RunRow.sweep_id).is_not(None),
                col(RunRow.state).not_in([state.value for state in ENDED]),
            )
            searching = func.json_extract(SweepRow.spec, "$.method") == "tpe"
            rows = session.exec(
                select(SweepRow.id).where(
                    col(SweepRow.id).in_(live) | (searching & col(SweepRow.stopped).is_(None))
                )
            )
            return list(rows.all())

    def trials(self, sweep_id: str) -> list[Trial]:
        """Return the trials in the sweep's order."""
        with self._db.read() as session:
            rows = session.exec(
                select(Trial).where(Trial.sweep_id == sweep_id).order_by(col(Trial.number))
            )
            return list(rows.all())

    def trials_of_runs(self, run_ids: Sequence[str]) -> dict[str, Trial]:
        """Map run ids to the trials that the runs belong to."""
        with self._db.read() as session:
            rows = session.exec(select(Trial).where(col(Trial.run_id).in_(run_ids)))
            return {trial.run_id: trial for trial in rows.all()}

    def runs(self, sweep_id: str) -> list[RunRow]:
        """Return the sweep's runs, oldest first."""
        with self._db.read() as session:
            rows = session.exec(
                select(RunRow).where(RunRow.sweep_id == sweep_id).order_by(col(RunRow.number))
            )
            return list(rows.all())
