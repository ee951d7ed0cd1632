"""What is wrong with a run by its curves: since which step, what was seen, what to try."""

from __future__ import annotations

from fastapi import APIRouter

from lehr.schemas.streams import AlertView
from lehr_api.deps import FoundRun, ServicesDep
from lehr_api.etag import TaggedRoute
from lehr_api.responses import problem_responses

router = APIRouter(prefix="/runs/{ref}", tags=["events"], route_class=TaggedRoute)


@router.get("/alerts", responses=problem_responses(404))
def alerts(run: FoundRun, services: ServicesDep) -> list[AlertView]:
    """Return the alerts of the run's curves so far. Warnings of its trainer are among its
    events.
    """
    return [
        AlertView.model_validate(alert, from_attributes=True)
        for alert in services.presenter.runs.alerts(run)
    ]
