"""What a decision reads of one open attempt, and of its run."""

from __future__ import annotations

from collections.abc import Mapping

from lehr.cluster.desired import effective_desired, over_time_limit
from lehr.cluster.heartbeats import HeartbeatTable
from lehr.cluster.membership import Member
from lehr.control.lifecycle import Desired, RunState
from lehr.control.reconcile import AttemptPhase, OpenAttempt
from lehr.specs import stored
from lehr.store.tables import Attempt, RunRow


def open_attempt(
    attempt: Attempt, run: RunRow | None, members: Mapping[str, Member], heartbeats: HeartbeatTable
) -> OpenAttempt:
    """Return the attempt for the decision. ``run``: the attempt's run if it is active, else
    None.
    """
    heartbeat = heartbeats.of(attempt.id)
    current = run is not None and run.attempt == attempt.number
    desired = effective_desired(run) if run is not None and current else Desired.CANCEL
    over = run is not None and current and over_time_limit(run)
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
        stalled=_stalled(attempt, run, heartbeats),
        stall_in_s=_stall_in_s(attempt, run, heartbeats),
        # Events count as contact, too: the first heartbeat comes seconds later.
        contacted=alive or attempt.events_applied > 0,
        # A heartbeat of one part of a gang does not prove that the others were started.
        dispatched=attempt.dispatched_at is not None or (alive and len(nodes) == 1),
        in_flight=heartbeat.in_flight > 0,
        starts=heartbeats.starts(attempt.id),
        exited=attempt.exited_at is not None,
        ended_nodes=frozenset(nodes[int(rank)] for rank in parts),
        ended_well=bool(notes) and all(note.get("code") == 0 for note in notes),
        since_contact_s=heartbeats.since_contact_s(attempt.id),
        silent_nodes=heartbeats.silent_s(attempt.id, nodes) if len(nodes) > 1 else {},
        since_request_s=heartbeats.since_request_s(
            attempt.id, requested=desired is not Desired.RUN or over
        ),
        stop_grace_s=stored.stop_grace_s(run.spec) if run is not None else None,
        since_ended_s=heartbeats.since_ended_s(
            attempt.id, ended=attempt.exited_at is not None or bool(parts) or ended
        ),
        elapsed_s=heartbeats.elapsed_s(attempt.id),
    )


def may_be_preempted(run: RunRow, attempt: Attempt) -> bool:
    """Return whether it may be paused now for a run of a higher priority."""
    return (
        bool(run.spec.get("preemptible"))
        and run.state == RunState.RUNNING.value
        and run.desired == Desired.RUN.value
        and run.attempt == attempt.number
        and run.preemptions < int(run.spec["retries"]["preemption"])
    )


def _stalled(attempt: Attempt, run: RunRow | None, heartbeats: HeartbeatTable) -> str | None:
    limit = run.spec.get("stall_limit_s") if run is not None else None
    since = heartbeats.since_step_s(attempt.id)
    # A stopped step counter means something only if heartbeats arrive.
    if (
        limit is None
        or since is None
        or since <= limit
        or heartbeats.since_contact_s(attempt.id) > limit
    ):
        return None
    return f"no step for {since:.0f} s: stall_limit_s is {limit:g}"


def _stall_in_s(attempt: Attempt, run: RunRow | None, heartbeats: HeartbeatTable) -> float | None:
    limit = run.spec.get("stall_limit_s") if run is not None else None
    since = heartbeats.since_step_s(attempt.id) if limit is not None else None
    return None if limit is None or since is None or since > limit else limit - since
