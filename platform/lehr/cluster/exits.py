"""Read the exits of attempts: what decides the state of the run, and which nodes failed."""

from __future__ import annotations

from lehr.cluster.heartbeats import HeartbeatTable
from lehr.cluster.node_notes import readmitted
from lehr.cluster.run_values import request_message, situation
from lehr.control.exits import exit_report, finished_report
from lehr.control.finalize import EndedAttempt
from lehr.control.lifecycle import NODE_UNTIL, RunState
from lehr.control.nodes import Ended, avoided, ends_of
from lehr.control.retries import HEALED_BY_PROGRESS, SPENT, Budgets, healed
from lehr.control.saved_points import has_progressed, point_to_resume
from lehr.store import Store
from lehr.store.tables import Attempt, RunRow


def ended_attempt(
    store: Store, run: RunRow, attempt: Attempt, heartbeats: HeartbeatTable
) -> EndedAttempt | None:
    """Return the attempt's exit and what decides on it; None if it no longer decides on the run."""
    now = situation(run)
    if run.attempt != attempt.number or not now.state.active or attempt.exited_at is None:
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
        message=request_message(store, run),
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
