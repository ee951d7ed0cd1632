"""Records of a program wait while the disk is full: logging must not stop a training."""

from __future__ import annotations

import time
from collections import deque

from lehr_trainer.contract.records import Metrics, Record, Warning_
from lehr_trainer.errors import DiskFull
from lehr_trainer.runtime.event_stream import EventStream

_MOST = 50_000
"""Records that wait. When there are more, every second one of metrics is given up."""
_LAST_S = 30.0
"""How long the last records wait for space after the program has ended."""


class PatientStream:
    """Writes to ``events.jsonl`` in order, as soon as there is space."""

    def __init__(self, events: EventStream) -> None:
        self._events = events
        self._waiting: deque[Record] = deque()
        self._lost = 0

    def write(self, record: Record) -> None:
        """Append ``record``, now or later."""
        self._waiting.append(record)
        self.flush()

    def flush(self) -> bool:
        """Write what waits, as far as there is space; return whether nothing is left."""
        while self._waiting:
            try:
                self._events.write(self._waiting[0])
            except DiskFull:
                self._thin_out()
                return False
            self._waiting.popleft()
        if self._lost:
            text = f"{self._lost:,} records are lost: the disk was full, and too many waited"
            step, self._lost = self._events.last_step, 0
            self.write(Warning_(time=time.time(), code="records_lost", message=text, step=step))
        return True

    def finish(self) -> None:
        """Write all and sync it to disk.

        Raises:
            DiskFull: there was no space in half a minute.
        """
        deadline = time.monotonic() + _LAST_S
        while not self.flush():
            if time.monotonic() > deadline:
                raise DiskFull(f"no space left for the last {len(self._waiting):,} records")
            time.sleep(0.5)
        self._events.fsync()

    def _thin_out(self) -> None:
        """Give up every second record of metrics when too many wait."""
        if len(self._waiting) <= _MOST:
            return
        kept: deque[Record] = deque()
        given_up = 0
        for number, record in enumerate(self._waiting):
            if number % 2 and isinstance(record, Metrics):
                given_up += 1
            else:
                kept.append(record)
        self._waiting = kept
        self._lost += given_up
