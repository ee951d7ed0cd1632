"""Pause a run, which saves and frees its GPUs, and resume it."""

from __future__ import annotations

from typing import TYPE_CHECKING

from lehr import actor
from lehr.control.lifecycle import Desired, RunState
from lehr.errors import Conflict
from lehr.services.budget import check_launch

if TYPE_CHECKING:
    from lehr.schemas.runs import RunDetail
    from lehr.services.context import Context
    from lehr.store.tables import RunRow


def pause_run(context: Context, run: RunRow) -> RunDetail:
    """Request a pause; repeating it changes nothing."""
    return _request(context, run, Desired.PAUSE)


def resume_run(context: Context, run: RunRow) -> RunDetail:
    """Queue a paused run again, to resume from its checkpoint.

    Raises:
        Conflict: it is not paused, and no pause is requested.
    """
    if run.state != RunState.PAUSED and run.desired != Desired.PAUSE:
        raise Conflict(
            f"{run.name} ({run.id}) is {run.state}; only a paused run can be resumed.",
            hint="To queue a failed run again: retry." if run.state == RunState.FAILED else None,
        )
    check_launch(context, [])  # Its plan counts already; the budget may be used up.
    return _request(context, run, Desired.RUN)


def _request(context: Context, run: RunRow, desired: Desired) -> RunDetail:
    context.store.requests.set_desired(run.id, desired, actor=actor.current())
    context.dispatcher.wake()
    return context.presenter.runs.detail(context.store.runs.get(run.id))
