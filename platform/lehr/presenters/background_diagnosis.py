"""Diagnose ended runs in the background, so that lists can show their alerts."""

from __future__ import annotations

import contextlib
import logging
from typing import TYPE_CHECKING

from lehr import log_fields
from lehr.control.lifecycle import RunState
from lehr.errors import LehrError
from lehr.store.changed_runs import ChangedRuns
from lehr.store.changes import Change

if TYPE_CHECKING:
    from lehr.presenters.runs import RunPresenter
    from lehr.store import Store

_log = logging.getLogger("lehr.presenters.background_diagnosis")

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
            name="rounds",
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
        try:
            return self._store.runs.ended_among(changed)
        except LehrError:
            _log.exception("the runs to diagnose could not be read")
            return []

    def _look(self, run_id: str) -> None:
        # A run may be deleted meanwhile.
        with contextlib.suppress(LehrError):
            run = self._store.runs.get(run_id)
            try:
                news = self._runs.diagnose(run)
            except Exception:  # noqa: BLE001 - logged; one run's curves must not end the rounds
                fields = log_fields.of("run", run_id)
                _log.exception("%s could not be diagnosed", run_id, extra=fields)
                return
            if news:
                self._store.notify(Change("run", run_id))
