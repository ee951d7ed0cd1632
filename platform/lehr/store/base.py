"""What the parts of ``Store`` share."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from lehr.errors import NotFound
from lehr.store.changes import Change
from lehr.store.database import Database
from lehr.store.streams.index import Readers
from lehr.store.tables import Attempt, RunRow


class StoreBase:
    """One room of the store: a group of methods over the same databases and clock."""

    home: Path
    clock: Callable[[], float]
    db: Database
    index: Readers
    log_cap_bytes: int

    def _attempt_row(self, attempt_id: str) -> Attempt:
        with self.db.read() as session:
            row = session.get(Attempt, attempt_id)
        if row is None:
            raise NotFound(f"There is no attempt {attempt_id!r}.")
        return row

    def _run_changed(self, run: RunRow) -> None:
        self.db.changed(Change("run", run.id))
        if run.sweep_id is not None:
            self.db.changed(Change("sweep", run.sweep_id))
