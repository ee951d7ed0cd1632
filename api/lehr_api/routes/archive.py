"""Archive and delete runs and sweeps."""

from __future__ import annotations

import shutil
from typing import TYPE_CHECKING

from fastapi import APIRouter

from lehr import home as homes
from lehr.checkpoints.registry import CheckpointLocations, own_folder
from lehr.control.lifecycle import RunState
from lehr.errors import Conflict
from lehr.schemas import Deletion, RunDetail, SweepDeletion, SweepDetail
from lehr.store.records.checkpoints import CopyReport
from lehr_api import examples
from lehr_api.deps import FoundRun, FoundSweep, ServicesDep
from lehr_api.etag import TaggedRoute

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from lehr.store.tables import RunRow, SweepRow
    from lehr_api.services import Services

router = APIRouter(prefix="/runs/{ref}", tags=["runs"], route_class=TaggedRoute)


@router.post("/archive", responses=examples.answers(examples.DETAIL, 404, 409))
def archive(run: FoundRun, services: ServicesDep) -> RunDetail:
    """Archive an ended run: hide it from lists. Nothing is deleted. Idempotent."""
    return services.presenter.runs.detail(services.store.runs.set_archived(run.id, True))


@router.post("/unarchive", responses=examples.answers(examples.DETAIL, 404, 409))
def unarchive(run: FoundRun, services: ServicesDep) -> RunDetail:
    """Unarchive a run. Idempotent."""
    return services.presenter.runs.detail(services.store.runs.set_archived(run.id, False))


@router.get("/deletion", responses=examples.answers(examples.DELETION, 404))
def deletion(run: FoundRun, services: ServicesDep) -> Deletion:
    """Return what deleting the run would free; deletes nothing."""
    return _estimate_deletion(run, services, deleted=run.id in services.store.runs.deleted_ids())


@router.delete("", responses=examples.answers(examples.DELETION, 404, 409))
def delete(run: FoundRun, services: ServicesDep) -> Deletion:
    """Delete an ended run's checkpoints, metrics, logs and files; its record stays, archived.

    Spec, provenance, transitions and attempts stay. Rejected while a fork that has not ended needs
    one of its checkpoints. Repeating it finishes an interrupted deletion.
    """
    return _delete(run, services)


def _delete(run: RunRow, services: Services) -> Deletion:
    copies = [places for places in _places(run, services) if places.copy_url is not None]
    folder = own_folder(homes.runs_dir(services.settings.home), run.id)
    freed = _estimate_deletion(run, services, deleted=True)
    told = f"freed {freed.bytes:,} bytes" if freed.bytes else None
    services.store.runs.mark_deleted(run.id, message=told)
    services.store.streams.forget(run.id)
    if folder.is_dir():
        shutil.rmtree(folder)
    for places in copies:
        assert places.copy_url is not None
        places.remove_copy()
        removed = CopyReport(places.row.path, places.copy_url, "removed")
        services.store.checkpoints.note_copies(run.id, [removed])
    return freed


def _estimate_deletion(run: RunRow, services: Services, *, deleted: bool) -> Deletion:
    store = services.store
    folder = _folder(run, services)
    streams = store.streams.stored_bytes(run.id)
    inside = () if folder.is_symlink() else folder.rglob("*")
    files = sum(p.lstat().st_size for p in inside if p.is_symlink() or p.is_file())
    places = _places(run, services)
    copies = [one for one in places if one.copy_url is not None]
    elsewhere = sum(one.row.size_bytes for one in copies)
    notes = [
        f"left alone: of the checkpoint at step {one.row.step:,} {why}"
        for one in places
        for why in (one.stray_folder, one.stray_copy)
        if why is not None
    ]
    if folder.is_symlink():
        notes.append(f"refused for now: {folder} is a link")
    if copies:
        notes.append(f"{len(copies)} copies of its checkpoints go too, e.g. {copies[-1].copy_url}")
    if run.attempt and not folder.is_dir() and not deleted:
        notes.append("its run directory is not on this machine; what is on nodes stays there")
    if run.sweep_id is not None:
        notes.append("it is a trial of a sweep, which keeps its place but loses its value")
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
        checkpoints=len(store.checkpoints.of_run(run.id)),
        notes=notes,
    )


def _places(run: RunRow, services: Services) -> list[CheckpointLocations]:
    runs_dir = homes.runs_dir(services.settings.home)
    return [CheckpointLocations(runs_dir, run, row) for row in services.store.checkpoints.of_run(run.id)]


def _folder(run: RunRow, services: Services) -> Path:
    return homes.runs_dir(services.settings.home) / run.id


# ---------------------------------------------------------------------------------------- sweeps

sweeps = APIRouter(prefix="/sweeps/{ref}", tags=["sweeps"], route_class=TaggedRoute)


@sweeps.post("/archive", responses=examples.answers(examples.SWEEP_DETAIL, 404, 409))
def archive_sweep(sweep: FoundSweep, services: ServicesDep) -> SweepDetail:
    """Archive a finished sweep and its runs. Nothing is deleted. Idempotent."""
    store = services.store
    with store.transaction():
        _refuse_unfinished(sweep, services, "archived")
        for run in store.sweeps.runs(sweep.id):
            store.runs.set_archived(run.id, True)
        store.sweeps.set_archived(sweep.id, True)
    return services.presenter.sweeps.detail(store.sweeps.get(sweep.id))


@sweeps.post("/unarchive", responses=examples.answers(examples.SWEEP_DETAIL, 404, 409))
def unarchive_sweep(sweep: FoundSweep, services: ServicesDep) -> SweepDetail:
    """Unarchive a sweep and its runs, except deleted ones."""
    store = services.store
    with store.transaction():
        deleted = store.runs.deleted_ids()
        runs = [run for run in store.sweeps.runs(sweep.id) if run.id not in deleted]
        if not runs:
            raise Conflict(f"{sweep.name} ({sweep.id}) was deleted; only its record is left.")
        for run in runs:
            store.runs.set_archived(run.id, False)
        store.sweeps.set_archived(sweep.id, False)
    return services.presenter.sweeps.detail(store.sweeps.get(sweep.id))


@sweeps.get("/deletion", responses=examples.answers(examples.SWEEP_DELETION, 404))
def sweep_deletion(sweep: FoundSweep, services: ServicesDep) -> SweepDeletion:
    """Return what deleting the sweep would free; deletes nothing."""
    store = services.store
    deleted = store.runs.deleted_ids()
    runs = [run for run in store.sweeps.runs(sweep.id) if run.id not in deleted]
    notes = []
    living = [run for run in runs if not RunState(run.state).ended]
    if living:
        notes.append(f"refused for now: {_counted(living)} not ended (lehr cancel {sweep.id})")
    notes += _forks_outside(runs, services)
    return _estimate_sweep_deletion(
        sweep, [_estimate_deletion(run, services, deleted=False) for run in runs], notes
    )


@sweeps.delete("", responses=examples.answers(examples.SWEEP_DELETION, 404, 409))
def delete_sweep(sweep: FoundSweep, services: ServicesDep) -> SweepDeletion:
    """Delete the checkpoints, metrics, logs and files of a finished sweep's runs.

    Its spec, its trials and each run's record stay, archived. Nothing is deleted if one run must be
    kept. Repeating it finishes an interrupted deletion.
    """
    store = services.store
    _refuse_unfinished(sweep, services, "deleted")
    runs = store.sweeps.runs(sweep.id)
    waiting = _forks_outside(runs, services)
    if waiting:
        raise Conflict(f"{sweep.name} ({sweep.id}) is needed: {'; '.join(waiting)}.")
    freed = [_delete(run, services) for run in runs]
    store.sweeps.set_archived(sweep.id, True)
    return _estimate_sweep_deletion(sweep, freed, []).model_copy(update={"deleted": True})


def _refuse_unfinished(sweep: SweepRow, services: Services, what: str) -> None:
    runs = services.store.sweeps.runs(sweep.id)
    living = [run for run in runs if not RunState(run.state).ended]
    if living:
        raise Conflict(
            f"{sweep.name} ({sweep.id}) is not finished: {_counted(living)} not ended; only "
            f"finished sweeps are {what}.",
            hint=f"Cancel it first: lehr cancel {sweep.id}",
        )


def _forks_outside(runs: Sequence[RunRow], services: Services) -> list[str]:
    found = []
    for run in runs:
        forks = services.store.runs.waiting_forks(run.id)
        if forks:
            names = ", ".join(f"{fork.name} ({fork.id})" for fork in forks)
            found.append(f"{names} would begin from a checkpoint of {run.name}")
    return found


def _counted(runs: Sequence[RunRow]) -> str:
    return f"{len(runs)} of its runs {'has' if len(runs) == 1 else 'have'}"


def _estimate_sweep_deletion(
    sweep: SweepRow, parts: Sequence[Deletion], notes: list[str]
) -> SweepDeletion:
    return SweepDeletion(
        sweep_id=sweep.id,
        name=sweep.name,
        deleted=False,
        runs=len(parts),
        bytes=sum(part.bytes for part in parts),
        copies_bytes=sum(part.copies_bytes for part in parts),
        checkpoints=sum(part.checkpoints for part in parts),
        notes=notes,
    )
