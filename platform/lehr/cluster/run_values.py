"""Read values of one run for a decision."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from lehr.cluster.heartbeats import HeartbeatTable
from lehr.cluster.launcher import placement_of
from lehr.cluster.membership import Member
from lehr.control.lifecycle import Desired, RunState, Situation
from lehr.control.queue_entries import Saved
from lehr.control.reconcile import AttemptPhase, OpenAttempt
from lehr.store import Store
from lehr.store.records.checkpoints import THERE
from lehr.store.tables import Attempt, CheckpointRow, RunRow


def situation(run: RunRow) -> Situation:
    return Situation(RunState(run.state), Desired(run.desired), run.cause)


def rank_in_queue(run: RunRow | None) -> dict[str, Any]:
    """Return the priority and project by which the queue ranks a run. An evaluation comes after
    every training, and takes nothing of a project's share or quota.
    """
    if run is None or run.evaluates is not None:
        return {"priority": -101, "project": ""}
    return {"priority": run.priority, "project": run.project}


def request_message(store: Store, run: RunRow) -> str | None:
    """Return the message of the request that currently applies to the run."""
    requests = store.requests.of_run(run.id)
    return requests[-1].message if requests and requests[-1].kind == run.desired else None


def saved(store: Store, run: RunRow) -> Saved | None:
    """Return the nodes that wrote the run's checkpoints; None if it starts at step 0.

    A fork that has saved nothing yet resumes from the checkpoint of another run.
    """
    points = store.checkpoints.of_run(run.id) if run.attempt else []
    points = points or store.checkpoints.base_of(run)
    if not points:
        return None
    newest = sorted(points, key=lambda point: (point.attempt, point.step), reverse=True)
    return Saved(_writers(store, newest), copied=any(point.copy_state == THERE for point in points))


def can_save(store: Store, run: RunRow) -> bool:
    """Return whether a stop does not cost the run's work: it saves then, or it has saved already.

    The checkpoint that a fork starts from is no work of the fork.
    """
    if run.stored.saves_when_stopped:
        return True
    return bool(run.attempt and store.checkpoints.of_run(run.id))


def _writers(store: Store, points: list[CheckpointRow]) -> tuple[str, ...]:
    """Return the first node of each attempt: it writes the checkpoints of the whole gang."""
    placements = {
        attempt.number: placement_of(attempt) for attempt in store.attempts.of_run(points[0].run_id)
    }
    here = [point.attempt for point in points if point.removed_at is None]
    found = [placements[number][0].node for number in here if placements.get(number)]
    return tuple(dict.fromkeys(found))


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
    beat = heartbeats.seen(attempt.id)
    alive = beat.last_heartbeat is not None or attempt.last_heartbeat_at is not None
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
        in_flight=beat.in_flight > 0,
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


KEPT_S = 60.0
"""Time for which estimates are kept. They move with each heartbeat; a plan of the queue, and the
reasons that it gives, should stay the same until something happens."""


class Estimates:
    """When attempts complete. Used by the dispatcher's thread."""

    def __init__(self, heartbeats: HeartbeatTable) -> None:
        self._heartbeats = heartbeats
        self._made_at = heartbeats.now()
        self._known: dict[str, float | None] = {}

    def refresh(self) -> None:
        if self.renewed_in_s() <= 0.0:
            self._made_at = self._heartbeats.now()
            self._known.clear()

    def renewed_in_s(self) -> float:
        return max(0.0, self._made_at + KEPT_S - self._heartbeats.now())

    def remaining_s(self, attempt: Attempt, run: RunRow | None) -> float | None:
        """Return the seconds until the attempt completes; None if unknown."""
        if run is None:
            return None
        if attempt.id not in self._known:
            self._known[attempt.id] = self._estimate(attempt.id, run)
        return self._known[attempt.id]

    def _estimate(self, attempt_id: str, run: RunRow) -> float | None:
        steps_seen = self._heartbeats.seen(attempt_id).steps
        step_s = self._heartbeats.step_s(attempt_id)
        if step_s is None:
            return None
        try:
            steps = run.stored.total_steps
        except (ArithmeticError, AttributeError, LookupError, TypeError, ValueError):
            # One spec that cannot be read must not stop the tick of all runs.
            return None
        return None if steps is None else max(0.0, (steps - steps_seen[-1][1]) * step_s)
