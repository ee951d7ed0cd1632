"""Copies of checkpoints: where each lies, and how it came there."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from sqlmodel import Session, col, select

from lehr.store.base import StoreBase
from lehr.store.records.runs import get_run, waiting_forks
from lehr.store.tables import CheckpointRow, RunRow

CopyState = Literal["uploading", "there", "failed", "removed"]
THERE: CopyState = "there"


@dataclass(frozen=True)
class CopyReport:
    """What a node says of one copy. Facts: said again, they change nothing."""

    path: str
    """The checkpoint's, relative to the run directory."""
    url: str
    state: CopyState
    error: str | None = None


class Copies(StoreBase):
    def note_copies(self, run_id: str, reports: Sequence[CopyReport]) -> list[str]:
        """Records what a node reports; returns the paths that are not registered yet.

        A copy may be done before its checkpoint's record has arrived: then it is said again.
        """
        unknown: list[str] = []
        with self.db.write() as session:
            run = get_run(session, run_id)
            rows = {row.path: row for row in _rows(session, run_id)}
            changed = False
            for report in reports:
                row = rows.get(report.path)
                if row is None:
                    unknown.append(report.path)
                elif (row.copy_url, row.copy_state, row.copy_error) != (
                    report.url,
                    report.state,
                    report.error,
                ):
                    if row.copy_state != report.state:
                        row.copy_at = self.clock()
                    row.copy_url, row.copy_state = report.url, report.state
                    row.copy_error = report.error
                    session.add(row)
                    changed = True
            if changed:
                self._run_changed(run)
        return unknown

    def copies(self, run_id: str) -> list[CheckpointRow]:
        """The run's checkpoints that have a copy, by attempt and step."""
        with self.db.read() as session:
            return [row for row in _rows(session, run_id) if row.copy_state == THERE]

    def needed_by_forks(self, run_id: str) -> set[str]:
        """Paths of the run's checkpoints that forks which have not begun are to begin from."""
        with self.db.read() as session:
            return {
                fork.resume_from.partition(f"/{run_id}/")[2]
                for fork in waiting_forks(session, run_id)
                if fork.resume_from is not None
            }

    def pinned_by_forks(self, run_id: str, path: str) -> list[RunRow]:
        """The forks that wait to begin from this checkpoint."""
        with self.db.read() as session:
            return [
                fork
                for fork in waiting_forks(session, run_id)
                if (fork.resume_from or "").endswith(f"/{run_id}/{path}")
            ]


def _rows(session: Session, run_id: str) -> list[CheckpointRow]:
    query = select(CheckpointRow).where(CheckpointRow.run_id == run_id)
    return list(
        session.exec(query.order_by(col(CheckpointRow.attempt), col(CheckpointRow.step))).all()
    )
