"""Figures of results, built once for dashboard and notebooks."""

from __future__ import annotations

from typing import Annotated

from fastapi import APIRouter, Query

from lehr.presenters.figures import sweep_figure
from lehr.schemas.sweeps import SweepFigure
from lehr_api import examples
from lehr_api.deps import FoundSweep, ServicesDep
from lehr_api.etag import TaggedRoute

router = APIRouter(prefix="/sweeps/{ref}", tags=["sweeps"], route_class=TaggedRoute)


_EXAMPLE = {
    "parameter": "train.optimizer.lr",
    "verdict": "Best lr 1.0e-3: val/loss 2.104; the fit says 1.1e-3; "
    "not at the edge of what was tried.",
    "notes": [],
    "figure": {"data": [], "layout": {}},
}


@router.get("/figure", responses=examples.answers(_EXAMPLE, 404))
def figure(
    sweep: FoundSweep,
    services: ServicesDep,
    parameter: Annotated[
        str | None,
        Query(description="The parameter on the x axis; a learning rate if there is one."),
    ] = None,
) -> SweepFigure:
    """The sweep's metric against a parameter, with the fit and what it says."""
    return sweep_figure(services.presenter.sweeps.detail(sweep), parameter)
