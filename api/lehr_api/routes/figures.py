"""Figures of results, for dashboard and notebooks."""

from __future__ import annotations

from typing import Annotated, Any

from fastapi import APIRouter, Query

from lehr.analysis.figures import sweep_figure_data
from lehr.analysis.sweep_result import parameter_choice, sweep_fit, sweep_verdict
from lehr.errors import NotFound, nearest
from lehr.schemas import SweepDetail, View
from lehr_api import examples
from lehr_api.deps import FoundSweep, ServicesDep
from lehr_api.etag import TaggedRoute

router = APIRouter(prefix="/sweeps/{ref}", tags=["sweeps"], route_class=TaggedRoute)


class SweepFigure(View):
    parameter: str
    """Parameter on the x axis."""
    verdict: str
    """The result as a sentence."""
    notes: list[str]
    """The sweep's notes, without those that the verdict repeats."""
    figure: dict[str, Any]
    """A Plotly figure: data and layout. Each trace's ``meta.role`` says what it is."""


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
    """Return the sweep's metric against a parameter, with the fit."""
    return sweep_figure(services.presenter.sweeps.detail(sweep), parameter)


def sweep_figure(detail: SweepDetail, parameter: str | None) -> SweepFigure:
    if parameter is not None and parameter not in detail.parameters:
        near = nearest(parameter, detail.parameters)
        raise NotFound(
            f"the sweep {detail.name} does not vary {parameter!r}.",
            hint=f"Did you mean {near}?" if near else f"It varies {', '.join(detail.parameters)}.",
        )
    chosen = parameter_choice(detail, parameter)
    fit = sweep_fit(detail, chosen)
    said = {fit.minimum_note()} if fit is not None else set()
    if detail.held_out == "different":
        said.add(detail.held_out_note)
    return SweepFigure(
        parameter=chosen,
        verdict=sweep_verdict(detail, chosen),
        notes=[note for note in detail.notes if note not in said],
        figure=sweep_figure_data(detail, chosen),
    )
