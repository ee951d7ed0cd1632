"""Archive runs, sweeps and rollouts, or delete their files: out of sight, or off the disk."""

from __future__ import annotations

import shutil
from collections.abc import Sequence

from lehr.app.services.context import Context
from lehr.base import home as homes
from lehr.base.filesystems import tree_bytes
from lehr.checkpoints.registry import CheckpointLocations, own_folder
from lehr.control.lifecycle import RunState
from lehr.errors import Conflict
from lehr.schemas.rollouts import RolloutDetail
from lehr.schemas.runs import Deletion, RunDetail
from lehr.schemas.sweeps import SweepDeletion, SweepDetail
from lehr.store.records.checkpoints import CopyReport
from lehr.store.records.run_rows import shown_run
from lehr.store.tables import RolloutRow, RunRow, SweepRow


def set_run_archived(context: Context, run: RunRow, archived: bool) -> RunDetail:
    """Archive or unarchive the run; raise Conflict if it has not ended, or was deleted."""
    return context.presenter.runs.detail(context.store.runs.set_archived(run.id, archived))


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
    return context.sweep(sweep.id)


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
    return context.sweep(sweep.id)


def set_rollout_archived(context: Context, rollout: RolloutRow, archived: bool) -> RolloutDetail:
    """Archive or unarchive an ended rollout; its runs do not change.

    Raises:
        Conflict: it has not ended.
    """
    if rollout.outcome is None and archived:
        raise Conflict(
            f"{rollout.name} ({rollout.id}) has not ended: only ended rollouts can be archived.",
            hint=f"Cancel it first: lehr cancel {rollout.id}",
        )
    context.store.rollouts.set_archived(rollout.id, archived=archived)
    context.dispatcher.wake()
    return context.rollout(rollout.id)


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


def estimate_run_deletion(context: Context, run: RunRow) -> Deletion:
    """Return what deleting the run would free; deletes nothing."""
    return _estimate_run(context, run, deleted=context.store.runs.is_deleted(run.id))


def delete_run(context: Context, run: RunRow) -> Deletion:
    """Delete an ended run. Deleting it again finishes an interrupted deletion.

    Raises:
        Conflict: it has not ended, or a fork that has not ended needs one of its checkpoints.
    """
    store = context.store
    copies = [one for one in _checkpoints(context, run) if one.copy_url is not None]
    folder = own_folder(homes.runs_dir(context.home), run.id)
    freed = _estimate_run(context, run, deleted=True)
    message = f"freed {freed.bytes:,} bytes" if freed.bytes else None
    store.runs.mark_deleted(run.id, message=message)
    store.streams.forget(run.id)
    if folder.is_dir():
        shutil.rmtree(folder)
    for one in copies:
        assert one.copy_url is not None
        one.remove_copy()
        store.checkpoints.note_copies(run.id, [CopyReport(one.row.path, one.copy_url, "removed")])
    store.collect_capsules()
    return freed


def estimate_sweep_deletion(context: Context, sweep: SweepRow) -> SweepDeletion:
    store = context.store
    deleted = store.runs.deleted_ids()
    runs = [run for run in store.sweeps.runs(sweep.id) if run.id not in deleted]
    notes = []
    unfinished = unfinished_runs(runs)
    if unfinished:
        notes.append(f"refused for now: {unfinished} (lehr cancel {sweep.id})")
    notes += _forks_outside(context, runs)
    parts = [_estimate_run(context, run, deleted=False) for run in runs]
    return _sum(sweep, parts, deleted=False, notes=notes)


def delete_sweep(context: Context, sweep: SweepRow) -> SweepDeletion:
    """Delete the runs of a finished sweep: all, or none if one must be kept.

    Deleting it again finishes an interrupted deletion.

    Raises:
        Conflict: a run has not ended, or a fork needs a checkpoint of one.
    """
    store = context.store
    runs = store.sweeps.runs(sweep.id)
    refuse_unfinished(sweep, runs, "deleted")
    waiting = _forks_outside(context, runs)
    if waiting:
        raise Conflict(f"{sweep.name} ({sweep.id}) is needed: {'; '.join(waiting)}.")
    freed = [delete_run(context, run) for run in runs]
    store.sweeps.set_archived(sweep.id, True)
    return _sum(sweep, freed, deleted=True, notes=[])


def refuse_deleted(context: Context, run: RunRow) -> None:
    if context.store.runs.is_deleted(run.id):
        raise Conflict(f"{run.name} ({run.id}) was deleted; only its record is kept.")


def _estimate_run(context: Context, run: RunRow, *, deleted: bool) -> Deletion:
    store = context.store
    folder = homes.runs_dir(context.home) / run.id
    streams = store.streams.stored_bytes(run.id)
    files = 0 if folder.is_symlink() else tree_bytes(folder)
    checkpoints = _checkpoints(context, run)
    copies = [one for one in checkpoints if one.copy_url is not None]
    elsewhere = sum(one.row.size_bytes for one in copies)
    notes = [
        f"the checkpoint at step {one.row.step:,} is left alone: {why}"
        for one in checkpoints
        if (why := one.stray_folder) is not None
    ]
    if folder.is_symlink():
        notes.append(f"refused for now: {folder} is a link")
    if copies:
        notes.append(f"{len(copies)} copies of its checkpoints go too, e.g. {copies[-1].copy_url}")
    if run.attempt and not folder.is_dir() and not deleted:
        notes.append("its run directory is not on this machine; files on nodes are not deleted")
    if run.sweep_id is not None:
        notes.append("it is a trial of a sweep: the trial stays, but its value is lost")
    forks = [fork.id for fork in store.runs.waiting_forks(run.id)]
    if forks:
        notes.append(f"refused for now: forks need its checkpoints ({', '.join(forks)})")
    return Deletion(
        run_id=run.id,
        name=run.name,
        deleted=deleted,
        bytes=streams + files + elsewhere,
        run_directory_bytes=files,
        streams_bytes=streams,
        copies_bytes=elsewhere,
        checkpoints=len(checkpoints),
        notes=notes,
    )


def _checkpoints(context: Context, run: RunRow) -> list[CheckpointLocations]:
    runs_dir = homes.runs_dir(context.home)
    return [
        CheckpointLocations(runs_dir, run, row) for row in context.store.checkpoints.of_run(run.id)
    ]


def _forks_outside(context: Context, runs: Sequence[RunRow]) -> list[str]:
    found = []
    for run in runs:
        forks = context.store.runs.waiting_forks(run.id)
        if forks:
            names = ", ".join(map(shown_run, forks))
            found.append(f"{names} would begin from a checkpoint of {run.name}")
    return found


def _sum(
    sweep: SweepRow, parts: Sequence[Deletion], *, deleted: bool, notes: list[str]
) -> SweepDeletion:
    return SweepDeletion(
        sweep_id=sweep.id,
        name=sweep.name,
        deleted=deleted,
        runs=len(parts),
        bytes=sum(part.bytes for part in parts),
        copies_bytes=sum(part.copies_bytes for part in parts),
        checkpoints=sum(part.checkpoints for part in parts),
        notes=notes,
    )
