"""A run's mirror in Weights & Biases, asked for afterwards or otherwise than in its spec."""

from __future__ import annotations

from fastapi import APIRouter

from lehr.schemas import RunDetail
from lehr.services.mirror import mirror_run
from lehr.specs.tracking import WandbTracking
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
    return mirror_run(services, run, body)
