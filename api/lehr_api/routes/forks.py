"""Forks: a new run that starts from a checkpoint of another run, with changes."""

from __future__ import annotations

from typing import Any

from fastapi import APIRouter
from pydantic import ConfigDict, Field
from starlette.responses import Response

from lehr.app.services.submit import fork_run
from lehr.control.forks import OptimizerState
from lehr.schemas.runs import RunDetail
from lehr_api.deps import FoundRun, IdempotencyHeader, ServicesDep
from lehr_api.responses import problem_responses
from lehr_api.threads import in_submissions
from lehr_trainer.configs.documented import Documented

router = APIRouter(prefix="/runs/{ref}", tags=["runs"])


class Fork(Documented):
    """The checkpoint and the changes."""

    model_config = ConfigDict(extra="forbid")

    step: int | None = Field(default=None, ge=0, examples=[15_000])
    """Step of the checkpoint; the newest checkpoint when it is not given."""
    changes: dict[str, Any] | list[str] = Field(
        default={},
        examples=[{"train.optimizer.lr": 1.5e-4}, ["train.schedule.warmup_steps=200"]],
    )
    """Values by dotted path that replace those of the run's spec. A new warmup begins at the
    checkpoint.
    """
    optimizer_state: OptimizerState = "keep"
    """fresh starts the optimizer without the checkpoint's state, as another optimizer must."""
    provenance: dict[str, Any] = {}
    """Provenance: commit, host, command. Stored, never interpreted."""


@router.post(
    "/fork",
    status_code=201,
    response_model=RunDetail,
    responses=problem_responses(400, 404, 409, 413),
)
@in_submissions
def fork(
    body: Fork, run: FoundRun, services: ServicesDep, key: IdempotencyHeader = None
) -> Response:
    """Record and queue a run that continues from a checkpoint of this one.

    It continues with the checkpoint's optimizer state (unless that is to be fresh), data order and
    step count; the source run does not change. Nothing is recorded on an error.
    """
    made = fork_run(
        services,
        run,
        body.changes,
        step=body.step,
        optimizer_state=body.optimizer_state,
        provenance=body.provenance,
    )
    return services.once(key, made)
