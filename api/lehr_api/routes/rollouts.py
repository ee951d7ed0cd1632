"""Rollouts: launch, list, show, cancel."""

from __future__ import annotations

from typing import Annotated, Any

from fastapi import APIRouter, Query
from pydantic import Field
from starlette.responses import Response

from lehr.errors import Conflict
from lehr.schemas import Page, RolloutDetail, RolloutView
from lehr_api import examples, rollout_example, submission
from lehr_api.deps import Cursor, FoundRollout, IdempotencyHeader, Limit, ServicesDep
from lehr_api.etag import TaggedRoute
from lehr_api.routes.runs import Submission
from lehr_api.services import Services

router = APIRouter(prefix="/rollouts", tags=["rollouts"], route_class=TaggedRoute)


class RolloutSubmission(Submission):
    spec: dict[str, Any] = Field(examples=[rollout_example.SPEC])


@router.post(
    "",
    status_code=201,
    response_model=RolloutDetail,
    responses=examples.answers(rollout_example.DETAIL, 400, 409, 413, status=201),
)
def launch(
    body: RolloutSubmission, services: ServicesDep, key: IdempotencyHeader = None
) -> Response:
    """Record a rollout. Its first stage starts at once, each further one when its gates have
    passed. Nothing is recorded if any stage is invalid.
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


@router.get("", responses=examples.answers(examples.page(rollout_example.ROLLOUT, RolloutView)))
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
    """List rollouts, newest first, one page at a time."""
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


@router.get("/{ref}", responses=examples.answers(rollout_example.DETAIL, 404))
def show(rollout: FoundRollout, services: ServicesDep) -> RolloutDetail:
    """Return its stages with their runs, and each gate with what was expected and seen."""
    return services.presenter.rollouts.detail(rollout)


@router.post("/{ref}/cancel", responses=examples.answers(rollout_example.DETAIL, 404))
def cancel(rollout: FoundRollout, services: ServicesDep) -> RolloutDetail:
    """Start no more runs of it, and stop the current one without saving. Idempotent."""
    services.store.rollout_progress.end(rollout.id, "cancelled", "cancelled", actor="user")
    return _wake_and_read(services, rollout.id)


@router.post("/{ref}/archive", responses=examples.answers(rollout_example.DETAIL, 404, 409))
def archive(rollout: FoundRollout, services: ServicesDep) -> RolloutDetail:
    """Archive an ended rollout: hide it from lists. Its runs stay listed."""
    if rollout.outcome is None:
        raise Conflict(
            f"{rollout.name} ({rollout.id}) has not ended: only ended rollouts can be archived.",
            hint=f"Cancel it first: lehr cancel {rollout.id}",
        )
    services.store.rollouts.set_archived(rollout.id, archived=True)
    return _wake_and_read(services, rollout.id)


@router.post("/{ref}/unarchive", responses=examples.answers(rollout_example.DETAIL, 404))
def unarchive(rollout: FoundRollout, services: ServicesDep) -> RolloutDetail:
    """Unarchive a rollout."""
    services.store.rollouts.set_archived(rollout.id, archived=False)
    return _wake_and_read(services, rollout.id)


def _wake_and_read(services: Services, rollout_id: str) -> RolloutDetail:
    services.dispatcher.wake()
    return services.presenter.rollouts.detail(services.store.rollouts.get(rollout_id))
