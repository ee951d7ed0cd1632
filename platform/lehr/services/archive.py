"""Archive and unarchive runs, sweeps and rollouts. Repeating it changes nothing."""

from __future__ import annotations

from typing import TYPE_CHECKING

from lehr.control.lifecycle import RunState
from lehr.errors import Conflict

if TYPE_CHECKING:
    from collections.abc import Sequence

    from lehr.schemas.rollouts import RolloutDetail
    from lehr.schemas.runs import RunDetail
    from lehr.schemas.sweeps import SweepDetail
    from lehr.services.context import Context
    from lehr.store.tables import RolloutRow, RunRow, SweepRow


def archive_run(context: Context, run: RunRow) -> RunDetail:
    """Archive the run; raise Conflict if it has not ended."""
    return context.presenter.runs.detail(context.store.runs.set_archived(run.id, True))


def unarchive_run(context: Context, run: RunRow) -> RunDetail:
    """Unarchive the run; raise Conflict if it was deleted."""
    return context.presenter.runs.detail(context.store.runs.set_archived(run.id, False))


def archive_sweep(context: Context, sweep: SweepRow) -> SweepDetail:
    """Archive a finished sweep with its runs.

    Raises:
        Conflict: one of its runs has not ended.
    """
    store = context.store
    with store.transaction():
        runs = store.sweeps.runs(sweep.id)
        refuse_unfinished(sweep, runs, "archived")
        store.runs.set_sweep_archived(sweep.id, True)
        store.sweeps.set_archived(sweep.id, True)
    return context.presenter.sweeps.detail(store.sweeps.get(sweep.id))


def unarchive_sweep(context: Context, sweep: SweepRow) -> SweepDetail:
    """Unarchive a sweep with its runs, except deleted ones.

    Raises:
        Conflict: all of its runs were deleted.
    """
    store = context.store
    with store.transaction():
        deleted = store.runs.deleted_ids()
        runs = [run for run in store.sweeps.runs(sweep.id) if run.id not in deleted]
        if not runs:
            raise Conflict(f"{sweep.name} ({sweep.id}) was deleted; only its record is kept.")
        store.runs.set_sweep_archived(sweep.id, False)
        store.sweeps.set_archived(sweep.id, False)
    return context.presenter.sweeps.detail(store.sweeps.get(sweep.id))


def archive_rollout(context: Context, rollout: RolloutRow) -> RolloutDetail:
    """Archive an ended rollout; its runs do not change.

    Raises:
        Conflict: it has not ended.
    """
    if rollout.outcome is None:
        raise Conflict(
            f"{rollout.name} ({rollout.id}) has not ended: only ended rollouts can be archived.",
            hint=f"Cancel it first: lehr cancel {rollout.id}",
        )
    return _set_rollout(context, rollout, archived=True)


def unarchive_rollout(context: Context, rollout: RolloutRow) -> RolloutDetail:
    return _set_rollout(context, rollout, archived=False)


def _set_rollout(context: Context, rollout: RolloutRow, *, archived: bool) -> RolloutDetail:
    context.store.rollouts.set_archived(rollout.id, archived=archived)
    context.dispatcher.wake()
    return context.presenter.rollouts.detail(context.store.rollouts.get(rollout.id))


def refuse_unfinished(sweep: SweepRow, runs: Sequence[RunRow], what: str) -> None:
    """Raise Conflict while one of the sweep's runs has not ended. ``what``: archived, deleted."""
    unfinished = unfinished_runs(runs)
    if unfinished:
        raise Conflict(
            f"{sweep.name} ({sweep.id}) is not finished: {unfinished}; only finished sweeps are "
            f"{what}.",
            hint=f"Cancel it first: lehr cancel {sweep.id}",
        )


def unfinished_runs(runs: Sequence[RunRow]) -> str | None:
    """Return in words how many of a sweep's runs have not ended; None when all have."""
    count = sum(not RunState(run.state).ended for run in runs)
    if count == 0:
        return None
    return f"{count} of its runs {'has' if count == 1 else 'have'} not ended"
