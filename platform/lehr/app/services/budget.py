"""Budgets: the GPU-hours that all runs of a named token may use together.

A run counts with the GPU-hours of its attempts, and until it has ended at least with its plan. A
launch over the budget is refused. Plans are estimates, so live runs are paused once more has been
used than the budget allows.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterable

from lehr.app.presenters.cost import forked_at, hours_on
from lehr.app.services.context import Context
from lehr.base import formats
from lehr.base.access import current_actor
from lehr.control.lifecycle import Desired, RunState
from lehr.errors import Conflict, Forbidden
from lehr.schemas.cluster import BudgetView
from lehr.specs import RunSpec
from lehr.specs.campaign import Campaign
from lehr.store.tables import RolloutRow, RunRow, SweepRow
from lehr_trainer.planning.hardware import find_gpu

_PRECISION = 1e-9
_SPENDING = (RunState.QUEUED, RunState.STARTING, RunState.RUNNING)


def budget(context: Context, name: str) -> BudgetView:
    """Return what the runs of this name have used, and what its token may still use."""
    token = context.store.access_tokens.of_name(name)
    limit = None if token is None else token.gpu_hours
    view = BudgetView(name=name, gpu_hours=limit, used=_used(context, name), promised=0.0)
    if limit is None:
        return view
    for run in context.store.runs.of_person(name):
        spec, step = RunSpec.model_validate(run.spec), forked_at(context.store, run)
        planned = planned_hours(context, spec, step) or 0.0
        view.promised += max(planned - _used(context, name, run.id), 0.0)
    view.left = max(limit - view.used - view.promised, 0.0)
    return view


def check_launch(
    context: Context,
    specs: Iterable[RunSpec],
    *,
    share: float = 1.0,
    trunk: RunSpec | None = None,
    campaign: Campaign | None = None,
) -> None:
    """Refuse a launch that is over the budget of the token of the current request.

    ``share``: factor from the planned hours of ``specs`` to those of the launch. ``trunk``: a run
    that is launched, too, and from whose end they start. ``campaign``: its budget counts instead.

    Raises:
        Forbidden: it is over the budget, or its hours cannot be planned.
    """
    token = context.store.access_tokens.of_name(current_actor())
    if token is None or token.gpu_hours is None:
        return
    needed = 0.0 if campaign is None else campaign.gpu_hours
    if campaign is not None:
        specs = ()
    for spec in specs if trunk is None else (trunk, *specs):
        begins = 0 if trunk is None or spec is trunk else trunk.own.steps
        hours = planned_hours(context, spec, begins)
        if hours is None:
            raise Forbidden(
                f"the time of {spec.name} cannot be planned, and the token {token.name!r} has a "
                "budget.",
                hint="Set time_limit_s in its spec, which then counts, or resources.gpu_type.",
            )
        needed += hours * (1.0 if spec is trunk else share)
    now = budget(context, token.name)
    if now.used + now.promised + needed > token.gpu_hours + _PRECISION:
        raise Forbidden(
            f"over the budget of the token {token.name!r}: this needs "
            f"{formats.gpu_hours(needed)}, and {formats.gpu_hours(now.left or 0.0)} of "
            f"{formats.gpu_hours(token.gpu_hours)} are left ({formats.gpu_hours(now.used)} used, "
            f"{formats.gpu_hours(now.promised)} planned for runs that have not ended).",
            hint="Make it smaller, wait for runs to end, or cancel some. An admin can create a "
            "token with a larger budget.",
        )


def refuse_others(context: Context, row: RunRow | SweepRow | RolloutRow) -> None:
    """Refuse a change of what another person submitted, to a token with a budget.

    Raises:
        Forbidden: the token of the current request has a budget and did not submit it.
    """
    token = context.store.access_tokens.of_name(current_actor())
    if token is not None and token.gpu_hours is not None and row.submitted_by != token.name:
        raise Forbidden(
            f"{row.name} ({row.id}) was submitted by {row.submitted_by}; the token {token.name!r} "
            "has a budget, and changes only what it submitted.",
            hint="fork, seeds and a new submission start a run of its own.",
        )


def pause_overrun(context: Context) -> list[str]:
    """Pause the live runs of each token that has used more than its budget; return their ids."""
    paused = []
    for token in context.store.access_tokens.all():
        if token.gpu_hours is None or _used(context, token.name) <= token.gpu_hours:
            continue
        why = f"the budget of {token.name} is used up: {formats.gpu_hours(token.gpu_hours)}"
        for run in context.store.runs.of_person(token.name):
            if run.state in _SPENDING and run.desired == Desired.RUN:
                with contextlib.suppress(Conflict):  # It has ended meanwhile.
                    context.store.requests.set_desired(
                        run.id, Desired.PAUSE, actor="server", message=why
                    )
                    paused.append(run.id)
    if paused:
        context.dispatcher.wake()
    return paused


def planned_hours(context: Context, spec: RunSpec, step: int = 0) -> float | None:
    """Return the GPU-hours of a run by its plan, at most by its time limit; None: unknown.

    ``step``: of the checkpoint that it starts from.
    """
    limit = None if spec.time_limit_s is None else spec.time_limit_s * spec.resources.gpus / 3600
    kind = spec.resources.gpu_type
    if kind is None:
        names = {gpu.name for node in context.dispatcher.nodes() for gpu in node.gpus}
        gpu = find_gpu(names.pop()) if len(names) == 1 else None
        kind = None if gpu is None else gpu.kind
    planned = None if kind is None and spec.resources.gpus else hours_on(spec, kind or "", step)
    return min((hours for hours in (planned, limit) if hours is not None), default=None)


def _used(context: Context, name: str, run_id: str | None = None) -> float:
    """Return the GPU-hours that the runs of a name have used, or one of them has."""
    ids = context.store.runs.ids_of_person(name) if run_id is None else [run_id]
    return context.store.attempts.use(ids).hours
