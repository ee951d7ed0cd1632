"""The priority of a run: unlike its spec, it may change while it waits."""

from __future__ import annotations

from fastapi import APIRouter
from pydantic import ConfigDict, Field

from lehr.app.services.requests import set_priority
from lehr.schemas.runs import RunDetail
from lehr_api.deps import ChangedRun, ServicesDep
from lehr_api.responses import problem_responses
from lehr_trainer.configs.documented import Documented

router = APIRouter(prefix="/runs/{ref}", tags=["runs"])


class Priority(Documented):
    """Where a run stands in the queue."""

    model_config = ConfigDict(extra="forbid")

    priority: int = Field(ge=-100, le=100, examples=[5])
    """Runs of a higher priority start first; specs have 0 unless they say otherwise."""


@router.put("/priority", responses=problem_responses(404, 409))
def put_priority(body: Priority, run: ChangedRun, services: ServicesDep) -> RunDetail:
    """Replace the priority of a run that has not ended. Idempotent."""
    return set_priority(services, run, body.priority)
