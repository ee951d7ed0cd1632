"""Figures of results, for dashboard and notebooks."""

from __future__ import annotations

from typing import Annotated

from fastapi import APIRouter, Query

from lehr.analysis import figure_svg
from lehr.analysis.sweep_figure import drawn_sweep
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
    width: Annotated[int, Query(ge=200, le=4000, description="In pixels.")] = figure_svg.WIDTH,
    height: Annotated[int, Query(ge=200, le=4000, description="In pixels.")] = figure_svg.HEIGHT,
) -> SweepFigure:
    """Return the sweep's metric against a parameter, with the fit, drawn as SVG."""
    detail = services.presenter.sweeps.outline(sweep)
    return drawn_sweep(detail, parameter, width=width, height=height, links=True)
