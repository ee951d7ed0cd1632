"""Exclude nodes that fail: reads how attempts ended, and records the decision."""

from __future__ import annotations

import logging
import threading
from collections.abc import Collection, Iterator, Mapping
from typing import Final

from lehr.control.nodes import FAULTS, Ended, failing
from lehr.control.retries import ExitReport, classify
from lehr.store import Store
from lehr.store.tables import Attempt, NodeNote

log = logging.getLogger(__name__)

EXCLUDED: Final = "excluded"


class NodeController:
    """Checks only after an attempt has ended; decisions are recorded in the store."""

    def __init__(self, store: Store) -> None:
        self._store = store
        self._ended = threading.Event()
        self._ended.set()  # A new server has checked nothing yet.

    def note_end(self) -> None:
        """Note that an attempt has ended. May be called from any thread."""
        self._ended.set()

    def tick(self, usable: Collection[str]) -> None:
        """Exclude failing nodes. ``usable``: the nodes that answer."""
        if not self._ended.is_set():
            return
        self._ended.clear()
        notes = self._store.nodes.notes()
        out = excluded(notes)
        ends = [end for attempt in self._store.attempts.recently_ended() for end in _ends(attempt)]
        for verdict in failing(
            [end for end in ends if end.node not in out],
            readmitted(notes),
            [node for node in usable if node not in out],
        ):
            if self._store.nodes.note(verdict.node, EXCLUDED, verdict.message, actor="dispatcher"):
                log.warning("node %s is excluded: %s", verdict.node, verdict.message)


def excluded(notes: Mapping[str, NodeNote]) -> dict[str, str]:
    """Return the excluded nodes, each with the reason."""
    return {name: note.message for name, note in notes.items() if note.kind == EXCLUDED}


def readmitted(notes: Mapping[str, NodeNote]) -> dict[str, float]:
    """Return by node since when its failures count."""
    return {name: note.at for name, note in notes.items() if note.kind != EXCLUDED}


def faulty_nodes(attempt: Attempt) -> dict[str, str]:
    """Return the nodes at fault for the attempt's exit, each with the cause."""
    note = attempt.exit or {}
    nodes = [str(share["node"]) for share in attempt.placement]
    if note.get("node") is not None:  # A person or the server decided its end.
        cause = str(note.get("reason"))
        return {str(note["node"]): cause} if cause in FAULTS else {}
    parts = note.get("parts")
    if not isinstance(parts, dict) or not parts:
        parts = {"0": note}
    found = {}
    for rank, part in parts.items():
        if not isinstance(part, dict):
            continue
        ended = ExitReport(
            code=part.get("code"),
            signal=part.get("signal"),
            reason=str(part.get("reason") or ""),
            log_tail=str(part.get("log_tail") or ""),
        )
        cause = ended.reason if ended.reason in FAULTS else classify(ended, None).name
        failed = part.get("code") != 0
        if failed and cause in FAULTS and int(rank) < len(nodes) and not part.get("stand_in"):
            found[nodes[int(rank)]] = cause
    return found


def _ends(attempt: Attempt) -> Iterator[Ended]:
    at_fault = faulty_nodes(attempt)
    at = attempt.exited_at or 0.0
    for share in attempt.placement:
        node = str(share["node"])
        # If one node broke a gang, the other nodes neither failed nor succeeded.
        if node in at_fault or not at_fault:
            yield Ended(node, attempt.id, at, at_fault.get(node))
