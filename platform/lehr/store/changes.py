"""Changes of the record, published to subscribers after the commit, never before."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Iterable
from dataclasses import KW_ONLY, dataclass
from typing import TYPE_CHECKING, Literal

from lehr.base import own_logs

if TYPE_CHECKING:
    from lehr.store.store import Store

_log = logging.getLogger("lehr.store")


@dataclass(frozen=True)
class Change:
    """Something changed: read it again. Equal changes may be published as one."""

    kind: Literal["run", "sweep", "rollout", "metrics", "log", "cluster"]
    id: str
    """Id of the run (run, metrics, log), sweep or rollout; "" for the cluster."""
    attempt: int | None = None  # For metrics and logs: number of the attempt.
    name: str | None = None  # For a log: name of its stream.
    size: int | None = None  # For a log: its bytes so far.
    progress: bool = False  # For a run or sweep: nothing but the step of an attempt has changed.


class Changes:
    def __init__(self) -> None:
        self._guard = threading.Lock()
        self._callbacks: dict[int, Callable[[Change], None]] = {}
        self._next = 0

    def subscribe(self, callback: Callable[[Change], None]) -> Callable[[], None]:
        """Call ``callback`` for each change, in the thread that made it. It must be quick."""
        with self._guard:
            number = self._next
            self._next += 1
            self._callbacks[number] = callback

        def unsubscribe() -> None:
            with self._guard:
                self._callbacks.pop(number, None)

        return unsubscribe

    def publish(self, changes: Iterable[Change]) -> None:
        with self._guard:
            callbacks = list(self._callbacks.values())
        for change in dict.fromkeys(changes):
            for callback in callbacks:
                try:
                    callback(change)
                except Exception:  # noqa: BLE001 - a subscriber's error must not reach the writer
                    # The change is already recorded.
                    fields = own_logs.of(change.kind, change.id)
                    _log.exception("a subscriber failed on %s", change, extra=fields)


SHARE = 0.2  # Largest share of one thread's time.


@dataclass(eq=False, repr=False)
class ChangedRuns:
    """Gathers changed runs, and hands each over once, in the order in which they changed.

    A run that changes while it is handled is handled again afterwards.
    """

    store: Store  # Its changes are observed.
    handle: Callable[[str], object]
    """Called with a run's id, in the thread. An error is logged, and the next run follows."""
    _: KW_ONLY
    name: str  # Of the thread, and what the log calls its work.
    gather_s: float  # Seconds for which changes are gathered before any is handled.
    of_interest: Callable[[Change], bool]  # Whether a change is one of a run to handle.
    choose: Callable[[list[str]], Iterable[str]] | None = None
    """Picks the gathered runs that are handled; all of them, if not given."""

    def __post_init__(self) -> None:
        self.due: dict[str, None] = {}  # Runs that wait, each once.
        self._changed = threading.Condition()
        self._stopped = threading.Event()
        self._thread = threading.Thread(target=self._go, name=self.name, daemon=True)
        self._unsubscribe: Callable[[], None] | None = None

    def start(self, first: Iterable[str]) -> None:
        """Begin with these runs. Changes from now on are not missed."""
        self._unsubscribe = self.store.subscribe(self._on_change)
        for run_id in first:
            self._put(run_id)
        self._thread.start()

    def stop(self) -> None:
        """Stop after the run that is being handled."""
        if self._unsubscribe is not None:
            self._unsubscribe()
        with self._changed:
            self._stopped.set()
            self._changed.notify()
        if self._thread.ident is not None:
            self._thread.join()

    def _on_change(self, change: Change) -> None:
        if self.of_interest(change):
            self._put(change.id)

    def _put(self, run_id: str) -> None:
        with self._changed:
            self.due.setdefault(run_id)
            self._changed.notify()

    def _go(self) -> None:
        while self._wait():
            with self._changed:
                changed, self.due = list(self.due), {}
            for run_id in self._chosen(changed):
                began = time.monotonic()
                try:
                    self.handle(run_id)
                except Exception:  # noqa: BLE001 - logged; the other runs follow
                    fields = own_logs.of("run", run_id)
                    _log.exception("%s: %s failed", self._thread.name, run_id, extra=fields)
                took = time.monotonic() - began
                if self._stopped.wait(took / SHARE - took):
                    return

    def _chosen(self, changed: list[str]) -> Iterable[str]:
        try:
            return changed if self.choose is None else self.choose(changed)
        except Exception:  # noqa: BLE001 - logged; changes may follow
            _log.exception("%s: %d changed runs could not be read", self._thread.name, len(changed))
            return []

    def _wait(self) -> bool:
        """Wait for changes; return False at the end."""
        with self._changed:
            self._changed.wait_for(lambda: self.due or self._stopped.is_set())
        return not self._stopped.wait(self.gather_s)
