"""Changes of the record, published to subscribers after the commit, never before."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Literal

from lehr import log_fields

_log = logging.getLogger("lehr.store")


@dataclass(frozen=True)
class Change:
    """Something changed: read it again. Equal changes may be published as one."""

    kind: Literal["run", "sweep", "rollout", "metrics", "log", "cluster"]
    id: str
    """Id of the run (run, metrics, log), sweep or rollout; "" for the cluster."""
    attempt: int | None = None
    """For metrics and logs: number of the attempt."""
    name: str | None = None
    """For a log: name of its stream."""
    size: int | None = None
    """For a log: its bytes so far."""
    progress: bool = False
    """For a run or sweep: nothing but the step of an attempt has changed."""


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
                    fields = log_fields.of(change.kind, change.id)
                    _log.exception("a subscriber failed on %s", change, extra=fields)
