"""Mirror of a run in Weights & Biases, requested later than its spec or with other settings."""

from __future__ import annotations

from fastapi import APIRouter

from lehr.errors import Conflict, UserError
from lehr.schemas import RunDetail
from lehr.specs.tracking import WandbTracking
from lehr.store.changes import Change
from lehr.wandb_mirror import preflight
from lehr.wandb_mirror.controller import request_for
from lehr_api import examples
from lehr_api.deps import FoundRun, ServicesDep
from lehr_api.etag import TaggedRoute

router = APIRouter(prefix="/runs/{ref}", tags=["runs"], route_class=TaggedRoute)


@router.post("/wandb", responses=examples.answers(examples.DETAIL, 404, 409))
def mirror(run: FoundRun, services: ServicesDep, body: WandbTracking) -> RunDetail:
    """Mirror the run to W&B from its first event, whether it has ended or not.

    The body is the spec's `tracking.wandb`; mode `off` ends mirroring. The run's `wandb` shows the
    progress.
    """
    lack = preflight.lack(body.mode)
    if lack is not None:
        raise UserError(f"mode is {body.mode}, but {lack[0]}.", hint=lack[1])
    if run.id in services.store.runs.deleted_ids():
        raise Conflict(f"{run.name} ({run.id}) was deleted; only its record is left.")
    request_for(services.settings.home, run.id, body, at=services.store.clock())
    services.store.notify(Change("run", run.id))
    return services.presenter.runs.detail(services.store.runs.get(run.id))
