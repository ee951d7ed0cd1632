"""A run's mirror in Weights & Biases, asked for afterwards or otherwise than in its spec."""

from __future__ import annotations

from fastapi import APIRouter

from lehr.errors import Conflict, UserError
from lehr.schemas import RunDetail
from lehr.specs.tracking import WandbTracking
from lehr.store.changes import Change
from lehr.wandb_mirror import preflight
from lehr.wandb_mirror.controller import request_for
from lehr_api.deps import FoundRun, ServicesDep
from lehr_api.etag import TaggedRoute
from lehr_api.responses import problem_responses

router = APIRouter(prefix="/runs/{ref}", tags=["runs"], route_class=TaggedRoute)


@router.post("/wandb", responses=problem_responses(404, 409))
def mirror(run: FoundRun, services: ServicesDep, body: WandbTracking) -> RunDetail:
    """Mirrors the run in W&B from its first event on, whether it has ended or not.

    The body is the spec's `tracking.wandb`; with mode `off`, mirroring ends. How far it is stands
    in the run's `wandb`.
    """
    lack = preflight.lack(body.mode)
    if lack is not None:
        raise UserError(f"mode is {body.mode}, but {lack[0]}.", hint=lack[1])
    if run.id in services.store.runs.deleted_ids():
        raise Conflict(f"{run.name} ({run.id}) was deleted; only its record is left.")
    request_for(services.settings.home, run.id, body, at=services.store.clock())
    services.store.notify(Change("run", run.id))
    return services.presenter.runs.detail(services.store.runs.get(run.id))
