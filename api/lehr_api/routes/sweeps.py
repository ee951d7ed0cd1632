"""Sweeps: launch, list, show, cancel."""

from __future__ import annotations

from typing import Annotated, Any

from fastapi import APIRouter, Query
from pydantic import BaseModel, ConfigDict, Field
from starlette.responses import Response

from lehr.control.lifecycle import Desired, RunState
from lehr.errors import Conflict
from lehr.schemas import Page, SweepDetail, SweepView
from lehr.specs import SweepSpec
from lehr_api import examples, submission
from lehr_api.deps import Cursor, FoundSweep, IdempotencyHeader, Limit, ServicesDep
from lehr_api.etag import TaggedRoute
from lehr_api.routes.runs import Submission
from lehr_api.services import Services

router = APIRouter(prefix="/sweeps", tags=["sweeps"], route_class=TaggedRoute)


class SweepSubmission(Submission):
    spec: dict[str, Any] = Field(examples=[examples.SWEEP_SPEC])


@router.post(
    "",
    status_code=201,
    response_model=SweepDetail,
    responses=examples.answers(examples.SWEEP_DETAIL, 400, 409, 413, status=201),
)
def launch(body: SweepSubmission, services: ServicesDep, key: IdempotencyHeader = None) -> Response:
    """Record a sweep with all its runs and queue them; nothing if any run is invalid."""
    spec, trials = submission.read_sweep(body.spec, body.overrides)

    def record() -> SweepDetail:
        sweep = services.store.sweeps.create(spec, trials, actor="user", provenance=body.provenance)
        return services.presenter.sweeps.detail(sweep)

    answer = services.answers.once(
        key,
        "sweeps",
        body.model_dump(mode="json"),
        check=lambda: submission.check_sweep(trials, services),
        record=record,
    )
    services.dispatcher.wake()
    return answer


@router.get("", responses=examples.answers(examples.SWEEP_PAGE))
def list_sweeps(
    services: ServicesDep,
    project: str | None = None,
    name: str | None = None,
    tag: str | None = None,
    search: Annotated[
        str | None, Query(description="Part of a name, id, project or tag.", max_length=200)
    ] = None,
    archived: bool = False,
    limit: Limit = 100,
    cursor: Cursor = None,
) -> Page[SweepView]:
    """List sweeps, newest first, one page at a time."""
    found = services.store.sweeps.page(
        project=project,
        name=name,
        tag=tag,
        search=search,
        archived=archived,
        limit=limit,
        cursor=cursor,
    )
    return Page[SweepView](
        items=services.presenter.sweeps.views(found.items),
        next_cursor=found.next_cursor,
        total=found.total,
    )


@router.get("/{ref}", responses=examples.answers(examples.SWEEP_DETAIL, 404))
def show(sweep: FoundSweep, services: ServicesDep) -> SweepDetail:
    """Return its trials, ranked at equal step, and notes on the result."""
    return services.presenter.sweeps.detail(sweep)


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
    responses=examples.answers(examples.SWEEP_DETAIL, 404, 409),
)
def retry(sweep: FoundSweep, services: ServicesDep, key: IdempotencyHeader = None) -> Response:
    """Queue the failed trials again, from their last checkpoints, and those that never ran
    because the sweep was stopped. A failed trial whose run was deleted gets a new run.
    """

    def record() -> SweepDetail:
        services.store.sweep_progress.retry_trials(sweep.id, actor="user")
        return services.presenter.sweeps.detail(services.store.sweeps.get(sweep.id))

    answer = services.answers.once(
        key, f"retry of {sweep.id}", {}, check=_nothing, record=record, status=200
    )
    services.dispatcher.wake()
    return answer


@router.post(
    "/{ref}/extend",
    response_model=SweepDetail,
    responses=examples.answers(examples.SWEEP_DETAIL, 400, 404, 409),
)
def extend(
    sweep: FoundSweep, body: Extension, services: ServicesDep, key: IdempotencyHeader = None
) -> Response:
    """Add trials, also to a finished sweep; existing ones do not change."""
    store = services.store

    def record() -> SweepDetail:
        now = store.sweeps.get(sweep.id)
        known = store.sweeps.trials(sweep.id)
        spec, trials = submission.read_extension(
            SweepSpec.model_validate(now.spec),
            [trial.parameters for trial in known],
            parameters=body.parameters,
            points=body.points,
            trials=body.trials,
        )
        submission.check_sweep(trials, services)
        if not store.sweep_progress.add_trials(sweep.id, trials, known=len(known), actor="user", spec=spec):
            raise Conflict(
                f"{sweep.name} ({sweep.id}) has been extended meanwhile.", hint="Try again."
            )
        return services.presenter.sweeps.detail(store.sweeps.get(sweep.id))

    answer = services.answers.once(
        key,
        f"extension of {sweep.id}",
        body.model_dump(mode="json"),
        check=_nothing,
        record=record,
        status=200,
    )
    services.dispatcher.wake()
    return answer


@router.post("/{ref}/cancel", responses=examples.answers(examples.SWEEP_DETAIL, 404))
def cancel(sweep: FoundSweep, services: ServicesDep) -> SweepDetail:
    """Stop all its runs that have not ended, without saving. Idempotent."""
    store = services.store
    with store.transaction():
        if services.presenter.sweeps.detail(sweep).trials_remaining:
            store.sweep_progress.stop(sweep.id, "cancelled", actor="user", waiting_too=False)
        for run in store.sweeps.runs(sweep.id):
            if not RunState(run.state).ended:
                store.requests.set_desired(run.id, Desired.CANCEL, actor="user", message="sweep cancelled")
    return _wake_and_read(services, sweep.id)


def _nothing() -> None:
    """Do nothing: all checks happen where it is recorded."""


def _wake_and_read(services: Services, sweep_id: str) -> SweepDetail:
    services.dispatcher.wake()
    return services.presenter.sweeps.detail(services.store.sweeps.get(sweep_id))
