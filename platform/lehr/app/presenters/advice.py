"""Notes on a finished sweep beside its ranking: the fit, the trials to add, the unknown noise."""

from __future__ import annotations

from dataclasses import replace

from lehr.analysis.lr_fit import to_try
from lehr.analysis.next_trials import next_seeds, next_trials, repetitions, untried
from lehr.analysis.sweep_result import lower_rates, parameter_choice, sweep_fit
from lehr.app.presenters.ranking import SweepVerdict, lead
from lehr.base.names import Goal, seed_path
from lehr.control.lifecycle import RunState
from lehr.schemas.sweeps import SweepDetail


def with_advice(
    detail: SweepDetail, verdict: SweepVerdict, goal: Goal, hours: float | None = None
) -> SweepDetail:
    """Add the notes of its verdict, and the trials to try next, to a finished sweep.

    ``hours`` are the GPU-hours of one trial so far.
    """
    parameter = parameter_choice(detail)
    fit = sweep_fit(detail, parameter)
    if fit is not None:
        rates = untried(detail, fit.next_rates, parameter)
        if rates != fit.next_rates:
            fit = replace(fit, next_rates=rates, cost_after=None)
        if fit.next_seeds and any(not RunState(one.run.state).ended for one in detail.repetitions):
            fit = replace(fit, next_seeds=0, cost_after=None)  # Seeds are on their way.
        more = next_seeds(detail, fit.next_seeds) or next_trials(detail, rates, parameter)
        more = more or repetitions(detail, fit, parameter)
        if more is not None:
            fit = replace(fit, trials=more.trials)
        notes = fit.notes(None if more is None or more.repeat else more.command, hours)
        return detail.model_copy(update={"notes": [*detail.notes, *notes], "next_trials": more})
    lower = untried(detail, lower_rates(detail, parameter), parameter)
    if lower:
        more = next_trials(detail, lower, parameter)
        advice = to_try(lower, more.command if more is not None else None)
        notes = [*detail.notes, f"All trials diverged. {advice}"]
        return detail.model_copy(update={"notes": notes, "next_trials": more})
    program = (detail.spec.get("run") or {}).get("trainer")
    repeatable = program is None or seed_path(program["args"]) is not None
    leads = lead(verdict.points, None, detail.metric, goal, repeatable=repeatable)
    if detail.noise is not None or leads is None:
        return detail
    return detail.model_copy(update={"notes": [*detail.notes, leads.sentence]})
