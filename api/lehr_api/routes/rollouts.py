"""Rollouts: launch, list, show, cancel, archive."""

from __future__ import annotations

from typing import Any

from fastapi import APIRouter
from starlette.responses import Response

from lehr.app.services.archive import set_rollout_archived
from lehr.app.services.requests import cancel_rollout, note_rollout
from lehr.app.services.submit import launch_rollout
from lehr.schemas.base import Page
from lehr.schemas.rollouts import RolloutDetail, RolloutView
from lehr_api.deps import ChangedRollout, FoundRollout, IdempotencyHeader, ListQueryDep, ServicesDep
from lehr_api.problems import problem_responses
from lehr_api.routes.runs import Note, Submission
from lehr_api.tagged_route import TaggedRoute
from lehr_api.threads import SUBMISSIONS

router = APIRouter(prefix="/rollouts", tags=["rollouts"], route_class=TaggedRoute)


class RolloutSubmission(Submission):
    spec: dict[str, Any]


@router.post("", status_code=201, response_model=RolloutDetail, responses=problem_responses(409))
@SUBMISSIONS.runs
def launch(
    body: RolloutSubmission, services: ServicesDep, key: IdempotencyHeader = None
) -> Response:
    """Record a rollout. Its first stage starts at once, each further one when its gates have
    passed. Nothing is recorded if any stage is invalid.
    """
    made = launch_rollout(services, body.spec, body.overrides, body.provenance)
    return services.once(key, made)


@router.get("")
def list_rollouts(services: ServicesDep, query: ListQueryDep) -> Page[RolloutView]:
    """List rollouts, newest first, one page at a time."""
    found = services.store.rollouts.page(**vars(query))
    return Page[RolloutView](
        items=services.presenter.rollouts.views(found.items),
        next_cursor=found.next_cursor,
        total=found.total,
    )


@router.get("/{ref}")
def show(rollout: FoundRollout, services: ServicesDep) -> RolloutDetail:
    """Return its stages with their runs, and each gate with what was expected and seen."""
    return services.presenter.rollouts.detail(rollout)


@router.post("/{ref}/cancel")
def cancel(rollout: ChangedRollout, services: ServicesDep) -> RolloutDetail:
    """Start no more runs of it, and stop the current one without saving. Idempotent."""
    return cancel_rollout(services, rollout)


@router.post("/{ref}/archive", responses=problem_responses(409))
def archive(rollout: ChangedRollout, services: ServicesDep) -> RolloutDetail:
    """Archive an ended rollout: hide it from lists. Its runs stay listed."""
    return set_rollout_archived(services, rollout, True)


@router.post("/{ref}/unarchive")
def unarchive(rollout: ChangedRollout, services: ServicesDep) -> RolloutDetail:
    """Unarchive a rollout."""
    return set_rollout_archived(services, rollout, False)


@router.put("/{ref}/note")
def put_rollout(body: Note, rollout: ChangedRollout, services: ServicesDep) -> RolloutDetail:
    """Replace the rollout's note; its runs keep theirs. Idempotent."""
    return note_rollout(services, rollout, body.note)
