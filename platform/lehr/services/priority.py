"""Change the priority of a run that has not ended: where it stands in the queue."""

from __future__ import annotations

from typing import TYPE_CHECKING

from lehr import actor
from lehr.control.lifecycle import RunState
from lehr.errors import Conflict

if TYPE_CHECKING:
    from lehr.schemas.runs import RunDetail
    from lehr.services.context import Context
    from lehr.store.tables import RunRow


def set_priority(context: Context, run: RunRow, priority: int) -> RunDetail:
    """Replace the priority; the spec keeps the one that the run was submitted with.

    A run that holds GPUs keeps them; its priority counts when it is queued again.

    Raises:
        Conflict: it has ended.
    """
    if RunState(run.state).ended:
        raise Conflict(
            f"{run.name} ({run.id}) is {run.state}; the priority of an ended run has no effect.",
            hint="To run it again: retry, or a fork.",
        )
    changed = context.store.runs.set_priority(run.id, priority, actor=actor.current())
    context.dispatcher.wake()
    return context.presenter.runs.detail(changed)
