"""Repetitions of a run with other seeds."""

from __future__ import annotations

from typing import Any

from fastapi import APIRouter
from pydantic import ConfigDict, Field
from starlette.responses import Response

from lehr.app.services.extend import repeat_run
from lehr.schemas.sweeps import SweepDetail
from lehr_api.deps import FoundRun, IdempotencyHeader, ServicesDep
from lehr_api.responses import problem_responses
from lehr_trainer.configs.documented import Documented

router = APIRouter(prefix="/runs/{ref}", tags=["runs"])


class Repetition(Documented):
    """How many runs to add."""

    model_config = ConfigDict(extra="forbid")

    n: int = Field(default=3, strict=True, examples=[3])
    """Number of runs, 1 to 20."""
    provenance: dict[str, Any] = {}
    """Provenance: commit, host, command. Stored, never interpreted."""


@router.post(
    "/seeds",
    status_code=201,
    response_model=SweepDetail,
    responses=problem_responses(400, 404, 409, 413),
)
def seeds(
    body: Repetition, run: FoundRun, services: ServicesDep, key: IdempotencyHeader = None
) -> Response:
    """Record and queue runs of the same spec with seeds that it does not have yet, as a sweep over
    the seed. The run itself does not change. Nothing is recorded on an error.
    """
    return services.once(key, repeat_run(services, run, n=body.n, provenance=body.provenance))
