"""What nodes did over time."""

from __future__ import annotations

from typing import TYPE_CHECKING

from lehr.errors import NotFound, UserError, nearest

if TYPE_CHECKING:
    from lehr.schemas.system import RunSystem, SystemHistory
    from lehr.services.context import Context
    from lehr.store.tables import RunRow

HOUR_S = 3600.0
LAST_TIME = 1e11
"""Beyond it, a time is no time: in the year 5138."""


def node_history(
    context: Context, node: str, *, first: float | None, last: float | None, points: int
) -> SystemHistory:
    """Return a node's measurements; by default of the last hour.

    Raises:
        NotFound: no such node is or was in the cluster.
        UserError: the span ends before it begins.
    """
    end = context.store.clock() if last is None else last
    begin = end - HOUR_S if first is None else first
    if not 0 <= begin <= end <= LAST_TIME:
        raise UserError(
            f"from is {begin:g} and to is {end:g}; give seconds since the epoch, from before to.",
            hint="Leave both out for the last hour.",
        )
    found = context.presenter.system.node(node, begin, end, points=points)
    if not found.host.cpu and not found.gpus:
        known = [one.name for one in context.cluster_views.cluster().nodes]
        if node not in known:
            near = nearest(node, known)
            raise NotFound(
                f"The cluster has no node {node!r}.",
                hint=f"Did you mean {near}?" if near else f"It has: {', '.join(known) or 'none'}.",
            )
    return found


def run_system(context: Context, run: RunRow, *, attempt: int | None, points: int) -> RunSystem:
    """Return the measurements of a run's nodes while its attempts ran.

    Raises:
        NotFound: it has no such attempt.
    """
    if attempt is not None and not 1 <= attempt <= run.attempt:
        raise NotFound(
            f"{run.name} ({run.id}) has no attempt {attempt}.",
            hint=f"It has {run.attempt}." if run.attempt else "It has not been started yet.",
        )
    return context.presenter.system.run(run, attempt=attempt, points=points)
