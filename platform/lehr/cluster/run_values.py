"""Read values of one run for a decision."""

from __future__ import annotations

from lehr.cluster.launch_spec import placement_of
from lehr.control.lifecycle import Desired, RunState, Situation
from lehr.control.queue_entries import Saved
from lehr.store import Store
from lehr.store.records.checkpoints import THERE
from lehr.store.tables import CheckpointRow, RunRow


def situation(run: RunRow) -> Situation:
    """Return the situation of the run."""
    return Situation(RunState(run.state), Desired(run.desired), run.cause)


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
