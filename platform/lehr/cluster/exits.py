"""Read the exits of attempts: what decides the state of the run, and which nodes failed."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping
from typing import Any

from lehr.cluster.heartbeats import HeartbeatTable
from lehr.cluster.membership import Member
from lehr.cluster.node_notes import readmitted
from lehr.cluster.run_values import request_message, situation
from lehr.control.finalize import EndedAttempt
from lehr.control.lifecycle import RunState
from lehr.control.maintenance import MAINTENANCE
from lehr.control.nodes import FAULTS, Ended
from lehr.control.retries import (
    HEALED_BY_PROGRESS,
    SPENT,
    Budgets,
    ExitReport,
    FinishedReport,
    classify,
    healed,
)
from lehr.control.saved_points import has_progressed
from lehr.store import Store
from lehr.store.tables import Attempt, RunRow


def synthetic_exit(cause: str, message: str, at: float, node: str | None = None) -> dict[str, Any]:
    """Return an exit report for an attempt without its own exit.json. ``node``: the faulty node,
    if known.
    """
    return {
        "code": None,
        "signal": None,
        "reason": cause,
        "detail": message,
        "log_tail": message,
        "ended_at": at,
        "synthetic": True,
        "node": node,
    }


def merge_exit_reports(parts: Mapping[str, Mapping[str, Any]]) -> dict[str, Any]:
    """Merge the exit reports of a gang's parts, given by node rank. The first failure decides."""
    ranked = sorted(parts.values(), key=lambda part: float(part.get("ended_at") or 0.0))
    failed = [part for part in ranked if part.get("code") != 0]
    finished = [part["finished"] for part in ranked if part.get("finished")]
    return {
        **(failed or ranked)[0],
        "finished": finished[0] if finished else None,
        "parts": {rank: dict(part) for rank, part in parts.items()},
    }


def listed_exit(attempt: Attempt, members: Mapping[str, Member]) -> dict[str, Any]:
    """Return how it ended, from its nodes' lists; reports of its own parts come first."""
    parts: dict[str, Any] = dict((attempt.exit or {}).get("parts", {}))
    for rank, share in enumerate(attempt.placement):
        listed = members[share["node"]].attempts.get(attempt.id)
        if listed is not None and listed.exit is not None:
            parts.setdefault(str(rank), listed.exit)
    return merge_exit_reports(parts) if len(attempt.placement) > 1 else dict(parts["0"])


def ended_attempt(
    store: Store, run: RunRow, attempt: Attempt, heartbeats: HeartbeatTable
) -> EndedAttempt | None:
    """Return the attempt's exit and what decides on it; None if it no longer decides on the run."""
    now = situation(run)
    if run.attempt != attempt.number or not now.state.active or attempt.exited_at is None:
        return None
    note = attempt.exit or {}
    spent = {column: int(getattr(run, column)) for column in SPENT.values()}
    moved = now.preempted or now.in_maintenance
    counts = moved or any(spent[column] for column in HEALED_BY_PROGRESS)
    progressed = counts and has_progressed(store.checkpoints.of_run(run.id), attempt.number)
    spent = healed(spent, progressed=progressed)
    used = {budget.value: spent[column] for budget, column in SPENT.items()}
    return EndedAttempt(
        run_id=run.id,
        attempt=attempt.number,
        state=now.state,
        desired=now.wanted,
        report=_report(note),
        finished=_finished(attempt.finished or note.get("finished")),
        budgets=Budgets.left(run.spec["retries"], used),
        spent=spent,
        progressed=progressed,
        over_time_limit=now.over_time_limit,
        preempted=now.preempted,
        maintenance=now.in_maintenance,
        program=run.spec.get("trainer") is not None,
        time_limit_s=run.spec.get("time_limit_s"),
        message=request_message(store, run),
        delivered=not attempt.open or bool(note.get("synthetic")),
        since_exit_s=heartbeats.since_ended_s(attempt.id, ended=True),
    )


def ends_on_nodes(store: Store, attempt: Attempt) -> Iterator[Ended]:
    """Return how the attempt ended on its nodes, where the node has failed or succeeded."""
    at_fault = faulty_nodes(attempt)
    if at_fault and _stopped_for_maintenance(store, attempt):
        return
    at = attempt.exited_at or 0.0
    for share in attempt.placement:
        node = str(share["node"])
        # If one node broke a gang, the other nodes neither failed nor succeeded.
        if node in at_fault or not at_fault:
            yield Ended(node, attempt.id, at, at_fault.get(node))


def _stopped_for_maintenance(store: Store, attempt: Attempt) -> bool:
    """Return whether it was stopped for a maintenance window: a node that is shut down then is not
    broken. The window may be over or removed by now.
    """
    return any(
        one.attempt == attempt.number and one.new == RunState.STOPPING and one.cause == MAINTENANCE
        for one in store.transitions.of_run(attempt.run_id)
    )


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
        ended = _report(part)
        cause = ended.reason if ended.reason in FAULTS else classify(ended, None).name
        failed = part.get("code") != 0
        if failed and cause in FAULTS and int(rank) < len(nodes) and not part.get("synthetic"):
            found[nodes[int(rank)]] = cause
    return found


def excluded_nodes(store: Store, run: RunRow) -> frozenset[str]:
    """Return nodes that failed this run twice by their own fault."""
    faults: Counter[str] = Counter()
    since = readmitted(store.nodes.notes())
    for attempt in store.attempts.of_run(run.id):
        at = attempt.exited_at or 0.0
        nodes = [node for node in faulty_nodes(attempt) if at > since.get(node, 0.0)]
        if nodes and not _stopped_for_maintenance(store, attempt):
            faults.update(nodes)
    return frozenset(node for node, number in faults.items() if number >= 2)


def _report(note: Mapping[str, Any]) -> ExitReport:
    return ExitReport(
        code=note.get("code"),
        signal=note.get("signal"),
        reason=str(note.get("reason") or ""),
        log_tail=str(note.get("log_tail") or ""),
    )


def _finished(record: Mapping[str, Any] | None) -> FinishedReport | None:
    if not record:
        return None
    return FinishedReport(
        outcome=str(record.get("outcome")),
        cause=record.get("cause"),
        message=record.get("message"),
        step=int(record.get("step") or 0),
    )
