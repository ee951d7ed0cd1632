"""Sweeps: a set of trials, each a point of the space with a run of its own."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from typing import Any, NamedTuple

from sqlalchemy import delete, func, update
from sqlalchemy import select as sql_select
from sqlmodel import col, select

from lehr.control.lifecycle import ENDED
from lehr.specs.run import RunSpec
from lehr.specs.stored import spans_of
from lehr.specs.sweep import SweepSpec
from lehr.specs.sweep_expand import TrialSpec
from lehr.store.changes import Change
from lehr.store.records.lists import Groups
from lehr.store.records.run_rows import (
    among,
    announce_run,
    announce_runs,
    insert_run,
    keep_provenance,
    total_steps,
    trunk_id,
    unused_id,
    waits_for_trunk,
)
from lehr.store.records.trial_rows import TrialRows
from lehr.store.tables import Attempt, RunRow, SweepRow, Trial
from lehr_trainer.configs.stages import StageSpan


class TrialOutline(NamedTuple):
    """A trial and the parts of its run that rank it or decide on it, without the run's spec."""

    number: int
    parameters: dict[str, Any]
    run_id: str
    name: str
    project: str
    state: str
    desired: str
    cause: str | None
    reason: str | None
    created_at: float
    started_at: float | None
    ended_at: float | None
    attempt: int
    last_step: int | None  # Of the newest attempt.
    total_steps: int | None
    course: str  # As for ``spans_of``.
    waits: bool = False
    """It starts from the last checkpoint of the sweep's trunk, which is not known yet."""
    limit_s: float | None = None  # Its time limit.
    repeats: str | None = None
    """For a run of another sweep: the trial's run that it repeats with another seed."""

    @property
    def spans(self) -> list[StageSpan]:
        return spans_of(self.course)


class Sweeps(Groups[SweepRow]):
    """Sweeps and their trials: created, and read by sweep or by run."""

    _table = SweepRow

    def create(
        self,
        spec: SweepSpec,
        trials: Sequence[TrialSpec] | TrialRows,
        *,
        actor: str = "user",
        provenance: Mapping[str, Any] | None = None,
        seeds_of: str | None = None,
        trunk: RunSpec | None = None,
    ) -> SweepRow:
        """Record the sweep, its trials and their runs: all of them, or nothing.

        ``seeds_of``: the run that its trials repeat with other seeds. ``trunk``: the run from whose
        last checkpoint they start.
        """
        rows = TrialRows.of(trials)
        plain = spec.model_dump(mode="json")
        at = self._clock()
        with self._db.write() as session:
            sweep = SweepRow(
                id=unused_id(session, SweepRow),
                name=spec.name,
                project=spec.project,
                spec=plain,
                tags=list(spec.tags),
                note=spec.notes,
                created_at=at,
                submitted_by=actor,
                seeds_of=seeds_of,
            )
            session.add(sweep)
            session.flush()
            first = None
            if trunk is not None:
                first = insert_run(
                    session, trunk, at=at, actor=actor, provenance=provenance, sweep_id=sweep.id
                )
            rows.insert(
                session,
                self._db,
                sweep.id,
                first=1,
                at=at,
                actor=actor,
                provenance_sha256=keep_provenance(session, provenance),
                trunk=first.id if first is not None else None,
            )
            if first is not None:
                announce_run(self._db, first)
            self._db.changed(Change("sweep", sweep.id))
            return sweep

    def gather(
        self, sweep_id: str, spec: SweepSpec, points: Mapping[str, dict[str, Any]], *, actor: str
    ) -> None:
        """Record a sweep of runs that are here. ``points``: their parameters, in its order."""
        with self._db.write() as session:
            sweep = session.exec(select(SweepRow).where(SweepRow.id == sweep_id)).one_or_none()
            new: dict[str, Any] = {
                "name": spec.name,
                "project": spec.project,
                "submitted_by": actor,
            }
            sweep = sweep or SweepRow(id=sweep_id, created_at=self._clock(), **new)
            sweep.spec = spec.model_dump(mode="json")
            session.add(sweep)
            session.flush()
            session.execute(delete(Trial).where(col(Trial.sweep_id) == sweep_id))
            for number, (run_id, own) in enumerate(points.items(), start=1):
                session.add(Trial(sweep_id=sweep_id, number=number, parameters=own, run_id=run_id))
            here = col(RunRow.id).in_(points)
            session.execute(update(RunRow).where(here).values(sweep_id=sweep_id))
            announce_runs(self._db, [(run_id, sweep_id) for run_id in points])

    def trunk(self, sweep_id: str) -> RunRow | None:
        """Return the run from whose last checkpoint the trials start; None if they have none."""
        with self._db.read() as session:
            return session.exec(select(RunRow).where(RunRow.id == trunk_id(sweep_id))).first()

    def unended(self) -> list[str]:
        """Return the ids of sweeps that go on: a run has not ended, or trials may be added."""
        live = select(RunRow.sweep_id).where(
            col(RunRow.sweep_id).is_not(None),
            col(RunRow.state).not_in([state.value for state in ENDED]),
        )
        method = func.json_extract(SweepRow.spec, "$.method")
        searching = method.in_(["tpe", "campaign"]) & col(SweepRow.stopped).is_(None)
        return self._all(select(SweepRow.id).where(col(SweepRow.id).in_(live) | searching))

    def beside(self, sweep: SweepRow, limit: int) -> list[SweepRow]:
        """Return the newest other sweeps of its project that have its metric."""
        metric = func.json_extract(SweepRow.spec, "$.metric.name")
        query = (
            select(SweepRow)
            .where(SweepRow.project == sweep.project, SweepRow.id != sweep.id)
            .where(metric == sweep.spec["metric"]["name"])
            .order_by(col(SweepRow.created_at).desc())
        )
        return self._all(query.limit(limit))

    def metrics(self, sweep_ids: Collection[str]) -> list[str]:
        """Return the metrics that these sweeps declare, of the newest first, as JSON."""
        declared = func.json_extract(SweepRow.spec, "$.metric")
        rows = select(declared).where(among(SweepRow.id, sweep_ids))
        return self._all(rows.order_by(col(SweepRow.number).desc()))

    def newest_run_at_last_end(self, sweep_id: str) -> int:
        """Return the number of the newest run when a run of the sweep ended last; 0 if none has."""
        last = select(func.max(RunRow.ended_at)).where(RunRow.sweep_id == sweep_id)
        with self._db.read() as session:
            rows = session.exec(
                select(RunRow.number)
                .where(col(RunRow.created_at) <= last.scalar_subquery())
                .order_by(col(RunRow.number).desc())
                .limit(1)
            )
            return rows.first() or 0

    def trials(self, sweep_id: str) -> list[Trial]:
        """Return the trials in the sweep's order."""
        return self._all(
            select(Trial).where(Trial.sweep_id == sweep_id).order_by(col(Trial.number))
        )

    def outlines(self, sweep_id: str) -> list[TrialOutline]:
        """Return an outline of each trial, in the sweep's order."""
        newest = (col(Attempt.run_id) == col(RunRow.id)) & (
            col(Attempt.number) == col(RunRow.attempt)
        )
        with self._db.read() as session:
            rows = session.execute(
                sql_select(
                    col(Trial.number),
                    col(Trial.parameters),
                    col(RunRow.id),
                    col(RunRow.name),
                    col(RunRow.project),
                    col(RunRow.state),
                    col(RunRow.desired),
                    col(RunRow.cause),
                    col(RunRow.reason),
                    col(RunRow.created_at),
                    col(RunRow.started_at),
                    col(RunRow.ended_at),
                    col(RunRow.attempt),
                    col(Attempt.last_step),
                    total_steps(),
                    func.json_extract(
                        RunRow.spec,
                        "$.train.batch",
                        "$.train.stages",
                        "$.train.forked_at",
                        "$.trainer.tokens_per_step",
                    ),
                    waits_for_trunk(),
                    func.json_extract(RunRow.spec, "$.time_limit_s"),
                )
                .join(RunRow, col(RunRow.id) == col(Trial.run_id))
                .join(Attempt, newest, isouter=True)
                .where(col(Trial.sweep_id) == sweep_id)
                .order_by(col(Trial.number))
            )
            return [TrialOutline(*row) for row in rows.all()]

    def repetitions(self, trials: Sequence[TrialOutline]) -> list[TrialOutline]:
        """Return the runs of other sweeps that repeat one of these trials with another seed.

        Their number is the trial's; their parameters are the trial's and the seed. A seed that the
        sweep has at the same point counts only as its own trial.
        """
        known = [trial.parameters for trial in trials]
        bases = {trial.run_id: trial for trial in trials}
        made = (
            run._replace(
                number=base.number, parameters=base.parameters | run.parameters, repeats=base.run_id
            )
            for base_id, sweep_id in self.seeds_of(bases)
            for base, run in ((bases[base_id], run) for run in self.outlines(sweep_id))
        )
        return [run for run in made if run.parameters not in known]

    def seeds_of(self, run_ids: Collection[str]) -> list[tuple[str, str]]:
        """Return pairs of a run and a sweep that repeats it with other seeds, oldest first."""
        with self._db.read() as session:
            rows = session.execute(
                sql_select(col(SweepRow.seeds_of), col(SweepRow.id))
                .where(col(SweepRow.seeds_of).in_(run_ids))
                .order_by(col(SweepRow.number))
            )
            return [(run_id, sweep_id) for run_id, sweep_id in rows if run_id is not None]

    def trial_count(self, sweep_id: str) -> int:
        with self._db.read() as session:
            count = select(func.count()).select_from(Trial).where(Trial.sweep_id == sweep_id)
            return session.exec(count).one()

    def trials_of_runs(self, run_ids: Sequence[str]) -> dict[str, Trial]:
        """Map run ids to the trials that the runs belong to."""
        trials = self._all(select(Trial).where(col(Trial.run_id).in_(run_ids)))
        return {trial.run_id: trial for trial in trials}

    def metric_names(self) -> dict[str, str]:
        """Return the metric of each sweep, by id."""
        name = func.json_extract(col(SweepRow.spec), "$.metric.name")
        with self._db.read() as session:
            return {row[0]: row[1] for row in session.execute(sql_select(col(SweepRow.id), name))}

    def runs(self, sweep_id: str) -> list[RunRow]:
        """Return the sweep's runs, oldest first."""
        return self._all(
            select(RunRow).where(RunRow.sweep_id == sweep_id).order_by(col(RunRow.number))
        )
