"""Convert rows and news to the values that ``lehr.control`` decides on."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from lehr.cluster.finalize import (
    effective_desired,
    merge_exit_reports,
    over_time_limit,
)
from lehr.cluster.heartbeats import HeartbeatTable
from lehr.cluster.launch_spec import placement_of
from lehr.cluster.membership import Member
from lehr.cluster.node_controller import faulty_nodes, readmitted
from lehr.control.lifecycle import Desired, RunState
from lehr.control.queue import Active, Waiting
from lehr.control.reconcile import AttemptPhase, OpenAttempt
from lehr.control.resources import Need, NodeShare
from lehr.errors import NotFound
from lehr.store import Store
from lehr.store.tables import Attempt, RunRow, SweepRow


def cluster_summary(members: Mapping[str, Member]) -> list[tuple[Any, ...]]:
    """Return the facts of the cluster whose changes are announced to subscribers."""
    return [(m.name, m.usable, m.error, len(m.gpus)) for m in members.values()]


def transition_for_request(state: RunState, desired: Desired) -> RunState | None:
    """Return the transition that a request causes in this state, if any."""
    ends = {Desired.CANCEL, Desired.PRUNE}
    if state is RunState.QUEUED:
        if desired in ends:
            return RunState.CANCELLED
        return RunState.PAUSED if desired is Desired.PAUSE else None
    if state is RunState.PAUSED:
        if desired in ends:
            return RunState.CANCELLED
        return RunState.QUEUED if desired is Desired.RUN else None
    if state in {RunState.STARTING, RunState.RUNNING} and desired is not Desired.RUN:
        return RunState.STOPPING
    return None


def open_attempt(
    attempt: Attempt, run: RunRow | None, members: Mapping[str, Member], heartbeats: HeartbeatTable
) -> OpenAttempt:
    """Return the attempt for the decision. ``run``: the attempt's run if it is active, else
    None.
    """
    heartbeat = heartbeats.of(attempt.id)
    _hear_from_record(attempt, heartbeats)
    now = heartbeats.now()
    current = run is not None and run.attempt == attempt.number
    desired = effective_desired(run) if run is not None and current else Desired.CANCEL
    over = run is not None and current and over_time_limit(run)
    if desired is not Desired.RUN or over:
        heartbeat.request_since = (
            now if heartbeat.request_since is None else heartbeat.request_since
        )
    nodes = [str(share["node"]) for share in attempt.placement]
    listed = [
        member.attempts[attempt.id]
        for name in nodes
        if (member := members.get(name)) is not None and attempt.id in member.attempts
    ]
    parts = (attempt.exit or {}).get("parts", {}) if len(nodes) > 1 else {}
    ended = any(one.state is AttemptPhase.ENDED for one in listed)
    notes = [*parts.values(), *(one.exit for one in listed if one.exit is not None)]
    if attempt.exited_at is not None or parts or ended:
        heartbeat.ended_since = now if heartbeat.ended_since is None else heartbeat.ended_since
    return OpenAttempt(
        id=attempt.id,
        nodes=tuple(nodes),
        current=current,
        desired=desired,
        over_time_limit=over,
        stalled=_stalled(attempt, run, heartbeats),
        dispatched=attempt.dispatched_at is not None or attempt.last_heartbeat_at is not None,
        in_flight=heartbeat.in_flight > 0,
        exited=attempt.exited_at is not None,
        ended_nodes=frozenset(nodes[int(rank)] for rank in parts),
        ended_well=bool(notes) and all(note.get("code") == 0 for note in notes),
        since_contact_s=heartbeats.since_contact_s(attempt.id),
        silent_nodes={
            name: now - heartbeat.node_heartbeats.get(rank, heartbeat.first_known)
            for rank, name in enumerate(nodes)
            if len(nodes) > 1
        },
        # Events count as contact, too: the first heartbeat comes seconds later.
        contacted=attempt.last_heartbeat_at is not None or attempt.events_applied > 0,
        since_request_s=now - heartbeat.request_since
        if heartbeat.request_since is not None
        else 0.0,
        since_ended_s=now - heartbeat.ended_since if heartbeat.ended_since is not None else 0.0,
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


def listed_exit(attempt: Attempt, members: Mapping[str, Member]) -> dict[str, Any]:
    """Return how it ended, from its nodes' lists; reports of its own parts come first."""
    parts: dict[str, Any] = dict((attempt.exit or {}).get("parts", {}))
    for rank, share in enumerate(attempt.placement):
        listed = members[share["node"]].attempts.get(attempt.id)
        if listed is not None and listed.exit is not None:
            parts.setdefault(str(rank), listed.exit)
    return merge_exit_reports(parts) if len(attempt.placement) > 1 else dict(parts["0"])


def _hear_from_record(attempt: Attempt, heartbeats: HeartbeatTable) -> None:
    """Count a heartbeat that was recorded elsewhere (not by ``on_heartbeat``) as contact now."""
    heartbeat = heartbeats.of(attempt.id)
    if attempt.last_heartbeat_at != heartbeat.recorded_heartbeat:
        if heartbeat.recorded_heartbeat is not None:
            heartbeats.heartbeat(attempt.id, step=attempt.last_step, elapsed_s=None)
        heartbeat.recorded_heartbeat = attempt.last_heartbeat_at


def waiting(run: RunRow, sweep: SweepRow | None, store: Store) -> Waiting:
    resources = run.spec["resources"]
    return Waiting(
        run_id=run.id,
        number=run.number or 0,
        name=run.name,
        need=Need(resources["gpus"], resources["nodes"], resources["gpu_type"]),
        priority=run.priority,
        project=run.project,
        sweep_id=run.sweep_id,
        sweep_name=sweep.name if sweep is not None else None,
        max_concurrent=sweep.spec.get("max_concurrent") if sweep is not None else None,
        excluded_nodes=excluded_nodes(store, run) if run.attempt > 1 else frozenset(),
    )


def excluded_nodes(store: Store, run: RunRow) -> frozenset[str]:
    """Return nodes that failed this run twice by their own fault."""
    faults: Counter[str] = Counter()
    since = readmitted(store.nodes.notes())
    for attempt in store.attempts.of_run(run.id):
        at = attempt.exited_at or 0.0
        faults.update(node for node in faulty_nodes(attempt) if at > since.get(node, 0.0))
    return frozenset(node for node, number in faults.items() if number >= 2)


def active(
    attempts: Sequence[Attempt],
    runs: Sequence[RunRow],
    members: Mapping[str, Member],
    heartbeats: HeartbeatTable,
) -> list[Active]:
    """Return all that holds GPUs: attempts that have not exited, and orphans that agents list."""
    by_id = {run.id: run for run in runs}
    held = []
    known = set()
    for attempt in attempts:
        if attempt.exited_at is not None:
            continue
        known.add(attempt.id)
        run = by_id.get(attempt.run_id)
        held.append(
            Active(
                run_id=attempt.run_id,
                placement=placement_of(attempt),
                number=(run.number or 0) if run is not None else 0,
                name=run.name if run is not None else attempt.id,
                project=run.project if run is not None else "default",
                sweep_id=run.sweep_id if run is not None else None,
                remaining_s=_remaining_s(attempt, run, heartbeats),
            )
        )
    for member in members.values():
        for attempt_id, listed in member.attempts.items():
            if listed.state is AttemptPhase.LIVE and attempt_id not in known:
                share = NodeShare(member.name, listed.gpus)
                held.append(Active(attempt_id, (share,), name=f"{attempt_id} (being ended)"))
    return held


def with_reported_exits(
    members: Mapping[str, Member], attempts: Sequence[Attempt], store: Store, gone: set[str]
) -> dict[str, Member]:
    """Return the members, with attempts that reported their own exit as ended: lists are older.

    A shim reports only after its attempt's processes are gone. An attempt that was given up as lost
    stays as listed, because its processes may live. ``gone`` remembers the reported exits of listed
    attempts from tick to tick.
    """
    rows = {attempt.id: attempt for attempt in attempts}
    listed_now = {attempt_id for member in members.values() for attempt_id in member.attempts}
    gone &= listed_now

    def ended(attempt_id: str) -> bool:
        if attempt_id in gone:
            return True
        row = rows.get(attempt_id)
        if row is None:
            try:
                row = store.attempts.get(attempt_id)
            except NotFound:
                return False
        if row.exited_at is None or (row.exit or {}).get("stand_in"):
            return False
        gone.add(attempt_id)
        return True

    found = {}
    for name, member in members.items():
        listed = {
            attempt_id: replace(one, state=AttemptPhase.ENDED)
            if one.state is AttemptPhase.LIVE and ended(attempt_id)
            else one
            for attempt_id, one in member.attempts.items()
        }
        found[name] = replace(member, attempts=listed)
    return found


def _remaining_s(attempt: Attempt, run: RunRow | None, heartbeats: HeartbeatTable) -> float | None:
    step_s = heartbeats.step_s(attempt.id)
    if run is None or step_s is None or attempt.last_step is None:
        return None
    steps = run.spec.get("train", {}).get("steps")
    return max(0.0, (int(steps) - attempt.last_step) * step_s) if steps is not None else None
