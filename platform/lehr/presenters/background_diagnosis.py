"""Diagnose ended runs in the background, so that lists can show their alerts."""

from __future__ import annotations

import contextlib
import logging
import threading
import time
from collections.abc import Callable
from typing import TYPE_CHECKING

from lehr.control.lifecycle import RunState
from lehr.errors import LehrError
from lehr.store.changes import Change

if TYPE_CHECKING:
    from lehr.presenters.runs import RunPresenter
    from lehr.store import Store

_log = logging.getLogger("lehr.presenters.background_diagnosis")

NEWEST = 300
"""Number of runs that had ended before the start to diagnose."""
SHARE = 0.2
"""Maximum share of one thread's time."""
GATHER_S = 0.5
"""Changes are gathered for so long, so that one query finds the runs among them that have ended."""


class BackgroundDiagnosis:
    """A thread that diagnoses runs as they end, and after a start the newest ended ones.

    A diagnosis reads a run's curves, which would take too long in a list of a thousand runs.
    """

    def __init__(self, store: Store, runs: RunPresenter) -> None:
        self._store = store
        self._runs = runs
        self._due: dict[str, None] = {}
        """Runs that changed, each once, in the order in which they changed."""
        self._changed = threading.Condition()
        self._stopped = threading.Event()
        self._thread = threading.Thread(target=self._go, name="rounds", daemon=True)
        self._unsubscribe: Callable[[], None] | None = None

    def start(self) -> None:
        self._unsubscribe = self._store.subscribe(self._on_change)
        ended = [state for state in RunState if state.ended]
        for run in self._store.runs.page(states=ended, limit=NEWEST).items:
            self._put(run.id)
        self._thread.start()

    def stop(self) -> None:
        if self._unsubscribe is not None:
            self._unsubscribe()
        with self._changed:
            self._stopped.set()
            self._changed.notify()
        if self._thread.ident is not None:
            self._thread.join()

    def _on_change(self, change: Change) -> None:
        if change.kind == "run":
            self._put(change.id)

    def _put(self, run_id: str) -> None:
        with self._changed:
            self._due.setdefault(run_id)
            self._changed.notify()

    def _go(self) -> None:
        while self._wait():
            with self._changed:
                changed, self._due = list(self._due), {}
            for run_id in self._ended(changed):
                began = time.monotonic()
                # A run may be deleted meanwhile.
                with contextlib.suppress(LehrError):
                    self._look(run_id)
                took = time.monotonic() - began
                if self._stopped.wait(took / SHARE - took):
                    return

    def _wait(self) -> bool:
        """Wait for changes; return False at the end."""
        with self._changed:
            self._changed.wait_for(lambda: self._due or self._stopped.is_set())
        return not self._stopped.wait(GATHER_S)

    def _ended(self, changed: list[str]) -> list[str]:
        """Return the runs to diagnose. A live one changes with each step: its row is not read."""
        try:
            return self._store.runs.ended_among(changed)
        except LehrError:
            _log.exception("the runs to diagnose could not be read")
            return []

    def _look(self, run_id: str) -> None:
        run = self._store.runs.get(run_id)
        try:
            news = self._runs.diagnose(run)
        except Exception:  # noqa: BLE001 - logged; one run's curves must not end the rounds
            _log.exception("%s could not be diagnosed", run_id)
            return
        if news:
            self._store.notify(Change("run", run_id))
