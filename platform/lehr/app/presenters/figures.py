"""Figures of results with the notes beside them."""

from __future__ import annotations

from typing import TYPE_CHECKING

from lehr.analysis import figure_svg
from lehr.analysis.sweep_figure import sweep_figure
from lehr.analysis.sweep_result import (
    parameter_choice,
    parameter_importance,
    sweep_fit,
    sweep_verdict,
)
from lehr.errors import NotFound, nearest
from lehr.schemas.sweeps import SweepFigure

if TYPE_CHECKING:
    from lehr.schemas.sweeps import SweepDetail


def drawn_sweep(
    detail: SweepDetail,
    parameter: str | None,
    *,
    width: int = figure_svg.WIDTH,
    height: int = figure_svg.HEIGHT,
    links: bool = False,
) -> SweepFigure:
    """Draw the sweep's metric against ``parameter``, or against the one that matters most.

    Args:
        detail: with all trials.
        parameter: on the x axis.
        width: of the drawing, in pixels.
        height: of the drawing, in pixels.
        links: whether a point leads to the page of its run.

    Raises:
        NotFound: the sweep does not vary ``parameter``.
    """
    if parameter is not None and parameter not in detail.parameters:
        near = nearest(parameter, detail.parameters)
        raise NotFound(
            f"the sweep {detail.name} does not vary {parameter!r}.",
            hint=f"Did you mean {near}?" if near else f"It varies {', '.join(detail.parameters)}.",
        )
    chosen = parameter_choice(detail, parameter)
    fit = sweep_fit(detail, chosen)
    # Intervals are drawn beside the notes; a bound is not.
    shown = {fit.range_note()} if fit is not None and fit.bound is None else set()
    if detail.held_out == "different":
        shown.add(detail.held_out_note)
    return SweepFigure(
        parameter=chosen,
        verdict=sweep_verdict(detail, chosen),
        notes=[note for note in detail.notes if note not in shown],
        svg=figure_svg.draw(
            sweep_figure(detail, chosen),
            f"{detail.metric} of {detail.name} against {chosen}",
            width=width,
            height=height,
            links=links,
        ),
        importance=parameter_importance(detail),
    )
