"""Runs: submit, list, show, act on."""

from __future__ import annotations

from typing import Annotated, Any

from fastapi import APIRouter, Query
from pydantic import BaseModel, ConfigDict, Field
from starlette.responses import Response

from lehr.control.lifecycle import Desired, RunState
from lehr.errors import Conflict
from lehr.schemas import Page, RunDetail, RunView
from lehr.specs import dump_yaml
from lehr.store import Store
from lehr.store.tables import RunRow
from lehr_api import examples, submission
from lehr_api.deps import Cursor, FoundRun, IdempotencyHeader, Limit, ServicesDep
from lehr_api.etag import TaggedRoute
from lehr_api.services import Services

router = APIRouter(prefix="/runs", tags=["runs"], route_class=TaggedRoute)


class Submission(BaseModel):
    """A spec to record, as `lehr schema` describes it."""

    model_config = ConfigDict(extra="forbid", use_attribute_docstrings=True)

    spec: dict[str, Any]
    overrides: dict[str, Any] | list[str] = Field(
        default={}, examples=[{"train.steps": 200}, ["train.optimizer.lr=3e-4"]]
    )
    """Values by dotted path that replace those of the spec."""
    provenance: dict[str, Any] = {}
    """Provenance: commit, host, command. Stored, never interpreted."""


class RunSubmission(Submission):
    spec: dict[str, Any] = Field(examples=[examples.RUN_SPEC])


@router.post(
    "",
    status_code=201,
    response_model=RunDetail,
    responses=examples.answers(examples.DETAIL, 400, 409, 413, status=201),
)
def submit(body: RunSubmission, services: ServicesDep, key: IdempotencyHeader = None) -> Response:
    """Record a run and queue it. Nothing is recorded if it is invalid."""
    spec = submission.read_run(body.spec, body.overrides)

    def record() -> RunDetail:
        run = services.store.runs.create(spec, actor="user", provenance=body.provenance)
        return services.presenter.runs.detail(run)

    answer = services.answers.once(
        key,
        "runs",
        body.model_dump(mode="json"),
        check=lambda: submission.check_run(spec, services),
        record=record,
    )
    services.dispatcher.wake()
    return answer


@router.get("", responses=examples.answers(examples.RUN_PAGE, 404))
def list_runs(
    services: ServicesDep,
    project: str | None = None,
    state: Annotated[
        list[RunState] | None, Query(description="Any of these; may be repeated.")
    ] = None,
    sweep: Annotated[str | None, Query(description="A sweep's id or name.")] = None,
    name: str | None = None,
    tag: str | None = None,
    search: Annotated[
        str | None, Query(description="Part of a name, id, project or tag.", max_length=200)
    ] = None,
    archived: bool = False,
    limit: Limit = 100,
    cursor: Cursor = None,
) -> Page[RunView]:
    """List runs, newest first, one page at a time."""
    store = services.store
    found = store.runs.page(
        project=project,
        states=state,
        sweep_id=store.sweeps.find(sweep).id if sweep is not None else None,
        name=name,
        tag=tag,
        search=search,
        archived=archived,
        limit=limit,
        cursor=cursor,
    )
    return Page[RunView](
        items=services.presenter.runs.views(found.items),
        next_cursor=found.next_cursor,
        total=found.total,
    )


@router.get("/{ref}", responses=examples.answers(examples.DETAIL, 404))
def show(run: FoundRun, services: ServicesDep) -> RunDetail:
    return services.presenter.runs.detail(run)


@router.get(
    "/{ref}/config",
    response_class=Response,
    responses=examples.text_answers(examples.CONFIG, "application/yaml", 404),
)
def config(run: FoundRun) -> Response:
    """Return the resolved training config: the run can be repeated from it alone."""
    return Response(dump_yaml(run.spec["train"]), media_type="application/yaml")


_ACT = examples.answers(examples.DETAIL, 404, 409)


@router.post("/{ref}/cancel", responses=_ACT)
def cancel(run: FoundRun, services: ServicesDep) -> RunDetail:
    """Stop the run without saving. Idempotent."""
    return _request(services, run, Desired.CANCEL)


@router.post("/{ref}/pause", responses=_ACT)
def pause(run: FoundRun, services: ServicesDep) -> RunDetail:
    """Save a checkpoint, stop, and free the GPUs. Idempotent."""
    return _request(services, run, Desired.PAUSE)


@router.post("/{ref}/resume", responses=_ACT)
def resume(run: FoundRun, services: ServicesDep) -> RunDetail:
    """Queue a paused run again; it resumes from its checkpoint."""
    if run.state != RunState.PAUSED and run.desired != Desired.PAUSE:
        raise Conflict(
            f"{run.name} ({run.id}) is {run.state}; only a paused run can be resumed.",
            hint="To queue a failed run again: retry." if run.state == RunState.FAILED else None,
        )
    return _request(services, run, Desired.RUN)


@router.post("/{ref}/retry", responses=_ACT)
def retry(run: FoundRun, services: ServicesDep) -> RunDetail:
    """Queue a failed run again, from its last checkpoint, with full retry budgets."""
    with services.store.transaction():
        if run.id in services.store.runs.deleted_ids():
            raise Conflict(f"{run.name} ({run.id}) was deleted; only its record is left.")
        moved = services.store.transitions.apply(
            run.id,
            old=RunState.FAILED,
            new=RunState.QUEUED,
            attempt=run.attempt,
            cause="retry",
            message="retried by the user",
            actor="user",
            set={
                "desired": Desired.RUN.value,
                "user_failures": 0,
                "infrastructure_failures": 0,
                "preemptions": 0,
            },
        )
    if not moved:
        raise Conflict(f"{run.name} ({run.id}) is {run.state}; only a failed run can be retried.")
    return _wake_and_read(services, run.id)


@router.post("/{ref}/checkpoint", responses=_ACT)
def checkpoint(run: FoundRun, services: ServicesDep) -> RunDetail:
    """Save a checkpoint at the next step."""
    services.store.requests.order_checkpoint(run.id, actor="user")
    return _wake_and_read(services, run.id)


def _request(services: Services, run: RunRow, desired: Desired) -> RunDetail:
    services.store.requests.set_desired(run.id, desired, actor="user")
    return _wake_and_read(services, run.id)


def _wake_and_read(services: Services, run_id: str) -> RunDetail:
    services.dispatcher.wake()
    store: Store = services.store
    return services.presenter.runs.detail(store.runs.get(run_id))
