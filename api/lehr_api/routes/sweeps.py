"""Sweeps: launch, list, show, cancel."""

from __future__ import annotations

from typing import Annotated, Any

from fastapi import APIRouter, Query
from pydantic import BaseModel, ConfigDict, Field
from starlette.responses import Response

from lehr.app.presenters.sweeps import PAGE
from lehr.app.services.extend import extend_sweep
from lehr.app.services.requests import cancel_sweep, retry_sweep
from lehr.app.services.submit import launch_sweep
from lehr.control.lifecycle import RunState
from lehr.schemas.base import Page
from lehr.schemas.sweeps import SweepDetail, SweepView
from lehr_api.deps import (
    ChangedSweep,
    Cursor,
    FoundSweep,
    IdempotencyHeader,
    Limit,
    ListQueryDep,
    ServicesDep,
)
from lehr_api.etag import TaggedRoute
from lehr_api.responses import problem_responses
from lehr_api.routes.runs import Submission
from lehr_api.threads import in_submissions

router = APIRouter(prefix="/sweeps", tags=["sweeps"], route_class=TaggedRoute)


class SweepSubmission(Submission):
    spec: dict[str, Any]


@router.post(
    "",
    status_code=201,
    response_model=SweepDetail,
    responses=problem_responses(400, 409, 413),
)
@in_submissions
def launch(body: SweepSubmission, services: ServicesDep, key: IdempotencyHeader = None) -> Response:
    """Record a sweep with all its runs and queue them; nothing if any run is invalid."""
    made = launch_sweep(services, body.spec, body.overrides, body.provenance)
    return services.once(key, made)


@router.get("", responses=problem_responses())
def list_sweeps(services: ServicesDep, query: ListQueryDep) -> Page[SweepView]:
    """List sweeps, newest first, one page at a time."""
    found = services.store.sweeps.page(**vars(query))
    return Page[SweepView](
        items=services.presenter.sweeps.views(found.items),
        next_cursor=found.next_cursor,
        total=found.total,
    )


@router.get("/{ref}", responses=problem_responses(404))
def show(
    sweep: FoundSweep,
    services: ServicesDep,
    state: Annotated[
        list[RunState] | None,
        Query(description="Only trials whose run is in any of these; may be repeated."),
    ] = None,
    run: Annotated[
        list[str] | None,
        Query(
            description="Only the trials of these runs, by id, and the standings of all: what a "
            "live page needs after those runs have changed. May be repeated.",
            max_length=200,
        ),
    ] = None,
    limit: Limit = PAGE,
    cursor: Cursor = None,
) -> SweepDetail:
    """Return its result with notes, and its trials, ranked at equal step, one page at a time.

    Counts, best trials and all other fields are of the whole sweep, on each page.
    """
    return services.presenter.sweeps.detail(
        sweep, limit=limit, cursor=cursor, states=state, run_ids=run
    )


class Extension(BaseModel):
    """Values, points or trials to add, depending on the sweep's method."""

    model_config = ConfigDict(
        extra="forbid",
        json_schema_extra={"examples": [{"parameters": {"train.optimizer.lr": [1e-2]}}]},
    )

    parameters: dict[str, list[Any]] | None = None
    """For a grid: more values of its parameters."""
    points: list[dict[str, Any]] | None = None
    """For a list: more points."""
    trials: Annotated[int, Field(ge=1, le=10_000)] | None = None
    """For a random or TPE search: number of trials to add."""


@router.post(
    "/{ref}/retry",
    response_model=SweepDetail,
    responses=problem_responses(404, 409),
)
def retry(sweep: ChangedSweep, services: ServicesDep, key: IdempotencyHeader = None) -> Response:
    """Queue the failed trials again, from their last checkpoints, and those that never ran
    because the sweep was stopped. A failed trial whose run was deleted gets a new run.
    """
    return services.once(key, retry_sweep(services, sweep), status=200)


@router.post(
    "/{ref}/extend",
    response_model=SweepDetail,
    responses=problem_responses(400, 404, 409),
)
@in_submissions
def extend(
    sweep: FoundSweep, body: Extension, services: ServicesDep, key: IdempotencyHeader = None
) -> Response:
    """Add trials, also to a finished sweep; existing ones do not change."""
    added = extend_sweep(
        services, sweep, parameters=body.parameters, points=body.points, trials=body.trials
    )
    return services.once(key, added, status=200)


@router.post("/{ref}/cancel", responses=problem_responses(404))
def cancel(sweep: ChangedSweep, services: ServicesDep) -> SweepDetail:
    """Stop all its runs that have not ended, without saving. Idempotent."""
    return cancel_sweep(services, sweep)
