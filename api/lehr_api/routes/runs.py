"""Runs: submit, list, show, act on."""

from __future__ import annotations

from typing import Annotated, Any

from fastapi import APIRouter, Query
from pydantic import ConfigDict, Field
from starlette.responses import Response

from lehr.app.services import submit as submitting
from lehr.app.services.checkpoints import order_checkpoint
from lehr.app.services.requests import cancel_run, pause_run, resume_run, retry_run
from lehr.control.lifecycle import RunState
from lehr.schemas.base import Page
from lehr.schemas.runs import RunDetail, RunView
from lehr.specs import dump_yaml
from lehr_api.deps import ChangedRun, FoundRun, IdempotencyHeader, ListQueryDep, ServicesDep
from lehr_api.etag import TaggedRoute
from lehr_api.responses import problem_responses, text_responses
from lehr_api.threads import in_submissions
from lehr_trainer.configs.documented import Documented

router = APIRouter(prefix="/runs", tags=["runs"], route_class=TaggedRoute)


class Submission(Documented):
    """A spec to record, as `lehr spec schema` describes it."""

    model_config = ConfigDict(extra="forbid")

    spec: dict[str, Any]
    overrides: dict[str, Any] | list[str] = Field(
        default={}, examples=[{"train.steps": 200}, ["train.optimizer.lr=3e-4"]]
    )
    """Values by dotted path that replace those of the spec."""
    provenance: dict[str, Any] = {}
    """Provenance: commit, host, command. Stored, never interpreted."""


class RunSubmission(Submission):
    spec: dict[str, Any]


@router.post(
    "",
    status_code=201,
    response_model=RunDetail,
    responses=problem_responses(400, 409, 413),
)
@in_submissions
def submit(body: RunSubmission, services: ServicesDep, key: IdempotencyHeader = None) -> Response:
    """Record a run and queue it. Nothing is recorded if the spec is invalid."""
    made = submitting.submit_run(services, body.spec, body.overrides, body.provenance)
    return services.once(key, made)


@router.get("", responses=problem_responses(404))
def list_runs(
    services: ServicesDep,
    query: ListQueryDep,
    state: Annotated[
        list[RunState] | None, Query(description="Any of these; may be repeated.")
    ] = None,
    sweep: Annotated[str | None, Query(description="A sweep's id or name.")] = None,
    run: Annotated[
        list[str] | None,
        Query(
            max_length=200,
            description="Only those of these ids, archived or not; may be repeated.",
            examples=[["k3f9x2ab", "p8w2c4nd"]],
        ),
    ] = None,
) -> Page[RunView]:
    """List runs, newest first, one page at a time."""
    store = services.store
    sweep_id = store.sweeps.find(sweep).id if sweep is not None else None
    wanted = vars(query) if run is None else {**vars(query), "archived": None}
    found = store.runs.page(states=state, sweep_id=sweep_id, ids=run, **wanted)
    return Page[RunView](
        items=services.presenter.runs.views(found.items),
        next_cursor=found.next_cursor,
        total=found.total,
    )


@router.get("/{ref}", responses=problem_responses(404))
def show(run: FoundRun, services: ServicesDep) -> RunDetail:
    return services.presenter.runs.detail(run)


@router.get(
    "/{ref}/config",
    response_class=Response,
    responses=text_responses("application/yaml", 404),
)
def config(run: FoundRun) -> Response:
    """Return the resolved training config: the run can be repeated from it alone."""
    return Response(dump_yaml(run.stored.config), media_type="application/yaml")


_ACT = problem_responses(404, 409)


@router.post("/{ref}/cancel", responses=_ACT)
def cancel(run: ChangedRun, services: ServicesDep) -> RunDetail:
    """Stop the run without saving. Idempotent."""
    return cancel_run(services, run)


@router.post("/{ref}/pause", responses=_ACT)
def pause(run: ChangedRun, services: ServicesDep) -> RunDetail:
    """Save a checkpoint, stop, and free the GPUs. Idempotent."""
    return pause_run(services, run)


@router.post("/{ref}/resume", responses=_ACT)
def resume(run: ChangedRun, services: ServicesDep) -> RunDetail:
    """Queue a paused run again; it resumes from its checkpoint."""
    return resume_run(services, run)


@router.post("/{ref}/retry", responses=_ACT)
def retry(run: ChangedRun, services: ServicesDep) -> RunDetail:
    """Queue a failed run again, from its last checkpoint, with full retry budgets."""
    return retry_run(services, run)


@router.post("/{ref}/checkpoint", responses=_ACT)
def checkpoint(run: ChangedRun, services: ServicesDep) -> RunDetail:
    """Save a checkpoint after the current step."""
    return order_checkpoint(services, run)
