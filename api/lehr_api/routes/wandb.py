"""Mirror of a run in Weights & Biases, requested later than its spec or with other settings."""

from __future__ import annotations

from fastapi import APIRouter

from lehr.app.services.requests import mirror_run
from lehr.schemas.runs import RunDetail
from lehr.specs.run import WandbTracking
from lehr_api.deps import ChangedRun, ServicesDep
from lehr_api.etag import TaggedRoute
from lehr_api.responses import problem_responses

router = APIRouter(prefix="/runs/{ref}", tags=["runs"], route_class=TaggedRoute)


@router.post("/wandb", responses=problem_responses(404, 409))
def mirror(run: ChangedRun, services: ServicesDep, body: WandbTracking) -> RunDetail:
    """Mirror the run to W&B from its first event, whether it has ended or not.

    The body is the spec's `tracking.wandb`; mode `off` ends mirroring. The run's `wandb` shows the
    progress.
    """
    return mirror_run(services, run, body)
