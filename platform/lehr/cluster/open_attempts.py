"""What a decision reads of one open attempt, and of its run."""

from __future__ import annotations

from collections.abc import Mapping

from lehr.cluster.heartbeats import HeartbeatTable
from lehr.cluster.membership import Member
from lehr.cluster.run_values import situation
from lehr.control.lifecycle import Desired
from lehr.control.reconcile import AttemptPhase, OpenAttempt
from lehr.store.tables import Attempt, RunRow


def open_attempt(
    attempt: Attempt, run: RunRow | None, members: Mapping[str, Member], heartbeats: HeartbeatTable
) -> OpenAttempt:
    """Return the attempt for the decision. ``run``: the attempt's run if it is active, else
    None.
    """
    current = run is not None and run.attempt == attempt.number
    found = situation(run) if run is not None and current else None
    desired = found.wanted if found is not None else Desired.CANCEL
    over = found is not None and found.over_time_limit
    nodes = [str(share["node"]) for share in attempt.placement]
    listed = [
        member.attempts[attempt.id]
        for name in nodes
        if (member := members.get(name)) is not None and attempt.id in member.attempts
    ]
    parts = (attempt.exit or {}).get("parts", {}) if len(nodes) > 1 else {}
    ended = any(one.state is AttemptPhase.ENDED for one in listed)
    notes = [*parts.values(), *(one.exit for one in listed if one.exit is not None)]
    alive = heartbeats.contacted(attempt.id) or attempt.last_heartbeat_at is not None
    return OpenAttempt(
        id=attempt.id,
        nodes=tuple(nodes),
        current=current,
        desired=desired,
        over_time_limit=over,
        stall_limit_s=run.stored.stall_limit_s if run is not None else None,
        since_step_s=heartbeats.since_step_s(attempt.id),
        # Events count as contact, too: the first heartbeat comes seconds later.
        contacted=alive or attempt.events_applied > 0,
        # A heartbeat of one part of a gang does not prove that the others were started.
        dispatched=attempt.dispatched_at is not None or (alive and len(nodes) == 1),
        in_flight=heartbeats.in_flight(attempt.id),
        starts=heartbeats.starts(attempt.id),
        exited=attempt.exited_at is not None,
        ended=attempt.exited_at is not None or bool(parts) or ended,
        ended_nodes=frozenset(nodes[int(rank)] for rank in parts),
        ended_well=bool(notes) and all(note.get("code") == 0 for note in notes),
        since_contact_s=heartbeats.since_contact_s(attempt.id),
        silent_nodes=heartbeats.silent_s(attempt.id, nodes) if len(nodes) > 1 else {},
        since_request_s=heartbeats.since_request_s(attempt.id),
        stop_grace_s=run.stored.stop_grace_s if run is not None else None,
        since_ended_s=heartbeats.since_ended_s(attempt.id),
        elapsed_s=heartbeats.elapsed_s(attempt.id),
    )
