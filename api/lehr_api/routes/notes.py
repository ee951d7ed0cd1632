"""Notes on runs, sweeps and rollouts: unlike their specs, they may change at any time."""

from __future__ import annotations

from fastapi import APIRouter
from pydantic import ConfigDict, Field

from lehr.app.services.requests import note_rollout, note_run, note_sweep
from lehr.schemas.rollouts import RolloutDetail
from lehr.schemas.runs import RunDetail
from lehr.schemas.sweeps import SweepDetail
from lehr.specs.run import LONGEST_NOTE
from lehr_api.deps import ChangedRollout, ChangedRun, ChangedSweep, ServicesDep
from lehr_api.responses import problem_responses
from lehr_trainer.configs.documented import Documented

router = APIRouter()


class Note(Documented):
    """Text of a note. Empty: none."""

    model_config = ConfigDict(extra="forbid")

    note: str = Field(max_length=LONGEST_NOTE, examples=["The warmup was too short."])
    """Plain text; addresses in it become links on the page."""


@router.put("/runs/{ref}/note", tags=["runs"], responses=problem_responses(404))
def put_run(body: Note, run: ChangedRun, services: ServicesDep) -> RunDetail:
    """Replace the run's note. Idempotent."""
    return note_run(services, run, body.note)


@router.put("/sweeps/{ref}/note", tags=["sweeps"], responses=problem_responses(404))
def put_sweep(body: Note, sweep: ChangedSweep, services: ServicesDep) -> SweepDetail:
    """Replace the sweep's note; its runs keep theirs. Idempotent."""
    return note_sweep(services, sweep, body.note)


@router.put("/rollouts/{ref}/note", tags=["rollouts"], responses=problem_responses(404))
def put_rollout(body: Note, rollout: ChangedRollout, services: ServicesDep) -> RolloutDetail:
    """Replace the rollout's note; its runs keep theirs. Idempotent."""
    return note_rollout(services, rollout, body.note)
