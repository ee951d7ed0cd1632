"""Diagnose ended runs in the background, so that lists can show their alerts."""

from __future__ import annotations

import contextlib
from typing import TYPE_CHECKING

from lehr.control.lifecycle import RunState
from lehr.errors import NotFound
from lehr.store.changed_runs import ChangedRuns
from lehr.store.changes import Change

if TYPE_CHECKING:
    from lehr.presenters.runs import RunPresenter
    from lehr.store import Store


NEWEST = 300
"""Number of runs that had ended before the start to diagnose."""
GATHER_S = 0.5
"""Changes are gathered for so long, so that one query finds the runs among them that have ended."""


class BackgroundDiagnosis:
    """A thread that diagnoses runs as they end, and after a start the newest ended ones.

    A diagnosis reads a run's curves, which would take too long in a list of a thousand runs.
    """

    def __init__(self, store: Store, runs: RunPresenter) -> None:
        self._store = store
        self._runs = runs
        self.changed = ChangedRuns(
            store,
            self._look,
            name="diagnoses",
            gather_s=GATHER_S,
            of_interest=lambda change: change.kind == "run",
            choose=self._ended,
        )

    def start(self) -> None:
        ended = [state for state in RunState if state.ended]
        newest = self._store.runs.page(states=ended, limit=NEWEST).items
        self.changed.start(run.id for run in newest)

    def stop(self) -> None:
        self.changed.stop()

    def _ended(self, changed: list[str]) -> list[str]:
        """Return the runs to diagnose. A live one changes with each step: its row is not read."""
        return self._store.runs.ended_among(changed)

    def _look(self, run_id: str) -> None:
        with contextlib.suppress(NotFound):  # Deleted meanwhile.
            if self._runs.diagnose(self._store.runs.get(run_id)):
                self._store.notify(Change("run", run_id))
