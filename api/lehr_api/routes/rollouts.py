"""Rollouts: launch, list, look at, cancel."""

from __future__ import annotations

from typing import Annotated, Any

from fastapi import APIRouter, Query
from starlette.responses import Response

from lehr.errors import Conflict
from lehr.schemas import Page, RolloutDetail, RolloutView
from lehr_api import submission
from lehr_api.deps import Cursor, FoundRollout, IdempotencyHeader, Limit, ServicesDep
from lehr_api.etag import TaggedRoute
from lehr_api.responses import problem_responses
from lehr_api.routes.runs import Submission
from lehr_api.services import Services

router = APIRouter(prefix="/rollouts", tags=["rollouts"], route_class=TaggedRoute)


class RolloutSubmission(Submission):
    spec: dict[str, Any]


@router.post(
    "",
    status_code=201,
    response_model=RolloutDetail,
    responses=problem_responses(400, 409, 413),
)
def launch(
    body: RolloutSubmission, services: ServicesDep, key: IdempotencyHeader = None
) -> Response:
    """Records a rollout; its first stage starts at once, each further one when its gates have
    been passed. Nothing is recorded when any stage is wrong.
    """
    spec, planned = submission.read_rollout(body.spec, body.overrides)

    def record() -> RolloutDetail:
        rollout = services.store.rollouts.create(
            spec, [stage.name for stage in planned], provenance=body.provenance
        )
        return services.presenter.rollouts.detail(rollout)

    answer = services.answers.once(
        key,
        "rollouts",
        body.model_dump(mode="json"),
        check=lambda: submission.check_rollout(planned, services),
        record=record,
    )
    services.dispatcher.wake()
    return answer


@router.get("", responses=problem_responses())
def list_rollouts(
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
) -> Page[RolloutView]:
    """Newest first, a page at a time."""
    found = services.store.rollouts.page(
        project=project,
        name=name,
        tag=tag,
        search=search,
        archived=archived,
        limit=limit,
        cursor=cursor,
    )
    return Page[RolloutView](
        items=services.presenter.rollouts.views(found.items),
        next_cursor=found.next_cursor,
        total=found.total,
    )


@router.get("/{ref}", responses=problem_responses(404))
def show(rollout: FoundRollout, services: ServicesDep) -> RolloutDetail:
    """Its stages with their runs, and each gate with what was expected and what was seen."""
    return services.presenter.rollouts.detail(rollout)


@router.post("/{ref}/cancel", responses=problem_responses(404))
def cancel(rollout: FoundRollout, services: ServicesDep) -> RolloutDetail:
    """Starts nothing more of it and stops its run, without saving. Asking twice is once."""
    services.store.rollout_progress.end(rollout.id, "cancelled", "cancelled", actor="user")
    return _wake_and_read(services, rollout.id)


@router.post("/{ref}/archive", responses=problem_responses(404, 409))
def archive(rollout: FoundRollout, services: ServicesDep) -> RolloutDetail:
    """Puts it out of sight, once it has ended; its runs stay where they are."""
    if rollout.outcome is None:
        raise Conflict(
            f"{rollout.name} ({rollout.id}) has not ended: only ended rollouts can be archived.",
            hint=f"Cancel it first: lehr cancel {rollout.id}",
        )
    services.store.rollouts.set_archived(rollout.id, archived=True)
    return _wake_and_read(services, rollout.id)


@router.post("/{ref}/unarchive", responses=problem_responses(404))
def unarchive(rollout: FoundRollout, services: ServicesDep) -> RolloutDetail:
    """Puts it back in sight."""
    services.store.rollouts.set_archived(rollout.id, archived=False)
    return _wake_and_read(services, rollout.id)


def _wake_and_read(services: Services, rollout_id: str) -> RolloutDetail:
    services.dispatcher.wake()
    return services.presenter.rollouts.detail(services.store.rollouts.get(rollout_id))
