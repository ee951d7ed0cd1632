"""Archiving and deleting runs and sweeps: out of sight, or off the disk."""

from __future__ import annotations

from fastapi import APIRouter

from lehr.schemas import Deletion, RunDetail, SweepDeletion, SweepDetail
from lehr.services import archive as archiving
from lehr.services import delete as deleting
from lehr_api.deps import FoundRun, FoundSweep, ServicesDep
from lehr_api.etag import TaggedRoute
from lehr_api.responses import problem_responses

router = APIRouter(prefix="/runs/{ref}", tags=["runs"], route_class=TaggedRoute)


@router.post("/archive", responses=problem_responses(404, 409))
def archive(run: FoundRun, services: ServicesDep) -> RunDetail:
    """Puts an ended run out of sight; nothing of it is lost. Asking twice is once."""
    return archiving.archive_run(services, run)


@router.post("/unarchive", responses=problem_responses(404, 409))
def unarchive(run: FoundRun, services: ServicesDep) -> RunDetail:
    """Puts an archived run back among the others. Asking twice is once."""
    return archiving.unarchive_run(services, run)


@router.get("/deletion", responses=problem_responses(404))
def deletion(run: FoundRun, services: ServicesDep) -> Deletion:
    """What deleting the run would free; deletes nothing."""
    return deleting.estimate_run_deletion(services, run)


@router.delete("", responses=problem_responses(404, 409))
def delete(run: FoundRun, services: ServicesDep) -> Deletion:
    """Deletes an ended run's checkpoints, metrics, logs and files; its record stays, archived.

    What stays: spec, provenance, moves, attempts. Refused while a fork that has not ended needs
    one of its checkpoints. Asking again finishes what was interrupted.
    """
    return deleting.delete_run(services, run)


sweeps = APIRouter(prefix="/sweeps/{ref}", tags=["sweeps"], route_class=TaggedRoute)


@sweeps.post("/archive", responses=problem_responses(404, 409))
def archive_sweep(sweep: FoundSweep, services: ServicesDep) -> SweepDetail:
    """Puts a finished sweep with its runs out of sight; nothing is lost. Asking twice is once."""
    return archiving.archive_sweep(services, sweep)


@sweeps.post("/unarchive", responses=problem_responses(404, 409))
def unarchive_sweep(sweep: FoundSweep, services: ServicesDep) -> SweepDetail:
    """Puts it back, with its runs, but for those that were deleted."""
    return archiving.unarchive_sweep(services, sweep)


@sweeps.get("/deletion", responses=problem_responses(404))
def sweep_deletion(sweep: FoundSweep, services: ServicesDep) -> SweepDeletion:
    """What deleting the sweep would free; deletes nothing."""
    return deleting.estimate_sweep_deletion(services, sweep)


@sweeps.delete("", responses=problem_responses(404, 409))
def delete_sweep(sweep: FoundSweep, services: ServicesDep) -> SweepDeletion:
    """Deletes the checkpoints, metrics, logs and files of a finished sweep's runs.

    What stays, archived: its spec, its trials, each run's record. Nothing is deleted where one run
    must be kept. Asking again finishes what was interrupted.
    """
    return deleting.delete_sweep(services, sweep)
