"""The last ends of attempts on each node, on which the check of nodes decides."""

from __future__ import annotations

import threading
from functools import partial

from lehr.cluster.exits import ends_on_nodes
from lehr.cluster.isolation import Isolation
from lehr.control.nodes import LIMIT, Ended
from lehr.control.step import Subject
from lehr.errors import NotFound
from lehr.store import Store
from lehr.store.tables import Attempt

AT_START = 1000
"""Ended attempts that a new server reads. Later ends are read one by one."""
_READING = "reading which nodes failed it"


class RecentEnds:
    """Keeps the last ``LIMIT`` ends of each node, so that many ends on other nodes hide none.

    ``note`` and ``note_all`` may be called from any thread.
    """

    def __init__(self, store: Store, isolation: Isolation) -> None:
        self._store = store
        self._isolation = isolation
        self._guard = threading.Lock()
        self._noted: set[str] = set()
        self._all = True
        self._of_node: dict[str, list[Ended]] = {}

    def note(self, attempt_id: str) -> None:
        """Read the end of this attempt with the next ``take``."""
        with self._guard:
            self._noted.add(attempt_id)

    def note_all(self) -> None:
        """Read the newest ends of the record with the next ``take``, as a new server must."""
        with self._guard:
            self._all = True

    def take(self) -> list[Ended]:
        """Return the last ends of all nodes; none if no attempt has ended since the last call."""
        with self._guard:
            noted, self._noted = self._noted, set()
            everything, self._all = self._all, False
        if not noted and not everything:
            return []
        try:
            if everything:
                self._of_node.clear()
                for attempt in self._store.attempts.recently_ended(AT_START):
                    self._read(attempt)
            for attempt_id in sorted(noted):
                try:
                    attempt = self._store.attempts.get(attempt_id)
                except NotFound:
                    continue  # Its run was deleted.
                self._read(attempt)
        except BaseException:
            self.note_all()
            raise
        return [end for ends in self._of_node.values() for end in ends]

    def _read(self, attempt: Attempt) -> None:
        run = Subject("run", attempt.run_id)
        if attempt.exited_at is None:
            return  # Other parts of its gang have not ended.
        kept = self._isolation.do(run, _READING, partial(self._keep, attempt))
        if not kept and self._isolation.tries_again(run, _READING):
            self.note(attempt.id)

    def _keep(self, attempt: Attempt) -> None:
        for end in ends_on_nodes(self._store, attempt):
            # An exit that is reported again replaces the one before.
            kept = [one for one in self._of_node.get(end.node, ()) if one.attempt != end.attempt]
            kept.append(end)
            self._of_node[end.node] = sorted(kept, key=lambda one: (one.at, one.attempt))[-LIMIT:]
