"""Read the exits of attempts: what decides the state of the run, and which nodes failed."""

from __future__ import annotations

import time
from collections.abc import Mapping
from functools import partial
from typing import Final

from lehr.cluster.heartbeats import HeartbeatTable
from lehr.cluster.isolation import Isolation, Noted
from lehr.cluster.run_values import request_message, situation
from lehr.control.availability import MARGIN_S, NodeEnd
from lehr.control.exits import exit_report, finished_report
from lehr.control.finalize import EndedAttempt
from lehr.control.lifecycle import NODE_UNTIL, RunState
from lehr.control.nodes import LIMIT, Ended, avoided, ends_of
from lehr.control.retries import HEALED_BY_PROGRESS, SPENT, Budgets, healed
from lehr.control.saved_points import has_progressed, point_to_resume
from lehr.control.step import Subject
from lehr.errors import NotFound
from lehr.store import Store
from lehr.store.tables import Attempt, NodeNote, RunRow

EXCLUDED: Final = "excluded"


def excluded(notes: Mapping[str, NodeNote]) -> dict[str, str]:
    return {name: note.message for name, note in notes.items() if note.kind == EXCLUDED}


def readmitted(notes: Mapping[str, NodeNote]) -> dict[str, float]:
    return {name: note.at for name, note in notes.items() if note.kind != EXCLUDED}


def node_ends(until: Mapping[str, float], now: float) -> dict[str, NodeEnd]:
    """Return the ends of the nodes that are available until a time, by the server's clock."""
    return {
        node: NodeEnd(end - MARGIN_S - now, time.strftime("%Y-%m-%d %H:%M %Z", time.localtime(end)))
        for node, end in until.items()
    }


def ended_attempt(
    store: Store, run: RunRow, attempt: Attempt, heartbeats: HeartbeatTable
) -> EndedAttempt | None:
    """Return the attempt's exit and what decides on it; None if it no longer decides on the run."""
    now = situation(run)
    if run.attempt != attempt.number or not now.state.reports or attempt.exited_at is None:
        return None
    note = attempt.exit or {}
    spent = {column: int(getattr(run, column)) for column in SPENT.values()}
    moved = now.preempted or now.node_ends
    counts = moved or any(spent[column] for column in HEALED_BY_PROGRESS)
    points = store.checkpoints.of_run(run.id)
    progressed = counts and has_progressed(points, attempt.number)
    spent = healed(spent, progressed=progressed)
    used = {budget.value: spent[column] for budget, column in SPENT.items()}
    return EndedAttempt(
        run_id=run.id,
        attempt=attempt.number,
        situation=now,
        report=exit_report(note),
        finished=finished_report(
            attempt.finished or note.get("finished"), program=bool(run.stored.program)
        ),
        budgets=Budgets.left(run.spec["retries"], used),
        spent=spent,
        progressed=progressed,
        resumable=point_to_resume(points, run.resume_from) is not None,
        time_limit_s=run.stored.time_limit_s,
        message=run.reason if now.rewinds else request_message(store, run),
        delivered=not attempt.open or bool(note.get("synthetic")),
        since_exit_s=heartbeats.since_ended_s(attempt.id),
    )


def ends_on_nodes(store: Store, attempt: Attempt) -> list[Ended]:
    """Return how the attempt ended on its nodes, where the node has failed or succeeded."""
    nodes = [str(share["node"]) for share in attempt.placement]
    found = ends_of(attempt.id, attempt.exited_at or 0.0, nodes, attempt.exit or {})
    failed = any(end.fault is not None for end in found)
    return [] if failed and _stopped_at_end_of_node(store, attempt) else found


def _stopped_at_end_of_node(store: Store, attempt: Attempt) -> bool:
    """Return whether it was stopped at the end of its node: one that is shut down then is not
    broken. The node may have another end by now.
    """
    return any(
        one.attempt == attempt.number and one.new == RunState.STOPPING and one.cause == NODE_UNTIL
        for one in store.transitions.of_run(attempt.run_id)
    )


def nodes_to_avoid(store: Store, run: RunRow) -> dict[str, float]:
    """Return ``avoided`` of the run. When a person retries it, the count starts again."""
    moves = store.transitions.of_run(run.id)
    retried = max((one.attempt for one in moves if one.old == RunState.FAILED), default=0)
    attempts = [one for one in store.attempts.of_run(run.id) if one.number > retried]
    ends = [end for one in attempts for end in ends_on_nodes(store, one)]
    return avoided(ends, readmitted(store.nodes.notes()), store.clock())


AT_START = 1000  # Ended attempts that a new server reads. Later ends are read one by one.
_READING = "reading which nodes failed it"


class RecentEnds:
    """Keeps the last ``LIMIT`` ends of each node, so that many ends on other nodes hide none."""

    def __init__(self, store: Store, isolation: Isolation) -> None:
        self._store = store
        self._isolation = isolation
        self.noted = Noted()  # Attempts whose ends are read with the next ``take``.
        self.all_noted = True  # Read the newest ends of the record, as a new server must.
        self._of_node: dict[str, list[Ended]] = {}

    def take(self) -> list[Ended]:
        """Return the last ends of all nodes; none if no attempt has ended since the last call."""
        noted, everything = self.noted.take(), self.all_noted
        if not noted and not everything:
            return []
        # Whatever fails below, the next call reads the record.
        self.all_noted = True
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
        self.all_noted = False
        return [end for ends in self._of_node.values() for end in ends]

    def _read(self, attempt: Attempt) -> None:
        run = Subject("run", attempt.run_id)
        if attempt.exited_at is None:
            return  # Other parts of its gang have not ended.
        kept = self._isolation.do(run, _READING, partial(self._keep, attempt))
        if not kept and self._isolation.tries_again(run, _READING):
            self.noted.add([attempt.id])

    def _keep(self, attempt: Attempt) -> None:
        for end in ends_on_nodes(self._store, attempt):
            # An exit that is reported again replaces the one before.
            kept = [one for one in self._of_node.get(end.node, ()) if one.attempt != end.attempt]
            kept.append(end)
            self._of_node[end.node] = sorted(kept, key=lambda one: (one.at, one.attempt))[-LIMIT:]
