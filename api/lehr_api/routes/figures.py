"""Figures of results, for dashboard and notebooks."""

from __future__ import annotations

from typing import Annotated

from fastapi import APIRouter, Query

from lehr.presenters.figures import sweep_figure
from lehr.schemas.sweeps import SweepFigure
from lehr_api.deps import FoundSweep, ServicesDep
from lehr_api.etag import TaggedRoute
from lehr_api.responses import problem_responses

router = APIRouter(prefix="/sweeps/{ref}", tags=["sweeps"], route_class=TaggedRoute)


@router.get("/figure", responses=problem_responses(404))
def figure(
    sweep: FoundSweep,
    services: ServicesDep,
    parameter: Annotated[
        str | None,
        Query(description="The parameter on the x axis; a learning rate if there is one."),
    ] = None,
) -> SweepFigure:
    """Return the sweep's metric against a parameter, with the fit."""
    return sweep_figure(services.presenter.sweeps.outline(sweep), parameter)
