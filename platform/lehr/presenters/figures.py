"""Figures of results with the notes beside them."""

from __future__ import annotations

from typing import TYPE_CHECKING

from lehr.analysis.figures import sweep_figure_data
from lehr.analysis.importance import parameter_importance
from lehr.analysis.sweep_result import parameter_choice, sweep_fit, sweep_verdict
from lehr.errors import NotFound, nearest
from lehr.schemas.sweeps import SweepFigure

if TYPE_CHECKING:
    from lehr.schemas.sweeps import SweepDetail


def sweep_figure(detail: SweepDetail, parameter: str | None) -> SweepFigure:
    """Draw the sweep's metric against ``parameter``, or against the one that matters most.

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
        figure=sweep_figure_data(detail, chosen),
        importance=parameter_importance(detail),
    )
