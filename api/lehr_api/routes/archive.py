"""Archiving and deleting runs and sweeps: out of sight, or off the disk."""

from __future__ import annotations

from fastapi import APIRouter

from lehr.app.services import archive as archiving
from lehr.schemas.runs import Deletion, RunDetail
from lehr.schemas.sweeps import SweepDeletion, SweepDetail
from lehr_api.deps import ChangedRun, ChangedSweep, FoundRun, FoundSweep, ServicesDep
from lehr_api.etag import TaggedRoute
from lehr_api.responses import problem_responses

router = APIRouter(prefix="/runs/{ref}", tags=["runs"], route_class=TaggedRoute)


@router.post("/archive", responses=problem_responses(404, 409))
def archive(run: ChangedRun, services: ServicesDep) -> RunDetail:
    """Archive an ended run: hide it from lists. Nothing is deleted. Idempotent."""
    return archiving.set_run_archived(services, run, True)


@router.post("/unarchive", responses=problem_responses(404, 409))
def unarchive(run: ChangedRun, services: ServicesDep) -> RunDetail:
    """Unarchive a run. Idempotent."""
    return archiving.set_run_archived(services, run, False)


@router.get("/deletion", responses=problem_responses(404))
def deletion(run: FoundRun, services: ServicesDep) -> Deletion:
    """Return what deleting the run would free; deletes nothing."""
    return archiving.estimate_run_deletion(services, run)


@router.delete("", responses=problem_responses(404, 409))
def delete(run: ChangedRun, services: ServicesDep) -> Deletion:
    """Delete an ended run's checkpoints, metrics, logs and files; its record stays, archived.

    Spec, provenance, transitions and attempts stay. Rejected while a fork that has not ended needs
    one of its checkpoints. Repeating it finishes an interrupted deletion.
    """
    return archiving.delete_run(services, run)


sweeps = APIRouter(prefix="/sweeps/{ref}", tags=["sweeps"], route_class=TaggedRoute)


@sweeps.post("/archive", responses=problem_responses(404, 409))
def archive_sweep(sweep: ChangedSweep, services: ServicesDep) -> SweepDetail:
    """Archive a finished sweep and its runs. Nothing is deleted. Idempotent."""
    return archiving.archive_sweep(services, sweep)


@sweeps.post("/unarchive", responses=problem_responses(404, 409))
def unarchive_sweep(sweep: ChangedSweep, services: ServicesDep) -> SweepDetail:
    """Unarchive a sweep and its runs, except deleted ones."""
    return archiving.unarchive_sweep(services, sweep)


@sweeps.get("/deletion", responses=problem_responses(404))
def sweep_deletion(sweep: FoundSweep, services: ServicesDep) -> SweepDeletion:
    """Return what deleting the sweep would free; deletes nothing."""
    return archiving.estimate_sweep_deletion(services, sweep)


@sweeps.delete("", responses=problem_responses(404, 409))
def delete_sweep(sweep: ChangedSweep, services: ServicesDep) -> SweepDeletion:
    """Delete the checkpoints, metrics, logs and files of a finished sweep's runs.

    Its spec, its trials and each run's record stay, archived. Nothing is deleted if one run must be
    kept. Repeating it finishes an interrupted deletion.
    """
    return archiving.delete_sweep(services, sweep)
