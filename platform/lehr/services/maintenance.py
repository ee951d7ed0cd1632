"""List, declare and remove maintenance windows."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

from lehr import actor
from lehr.control.maintenance import PERIODS_S, occurrence
from lehr.errors import NotFound, UserError, nearest
from lehr.schemas.maintenance import MaintenancesView, MaintenanceView

if TYPE_CHECKING:
    from lehr.services.context import Context
    from lehr.store.records.maintenance import MaintenanceRow

LONGEST_S = 90 * 86_400.0
SHORTEST_S = 1.0
FARTHEST_S = 2 * 366 * 86_400.0
"""Seconds in which a window may begin: two years."""
LONGEST_NOTE = 500


def list_windows(context: Context) -> MaintenancesView:
    found = [_view(context, row) for row in context.store.maintenance.all()]
    return MaintenancesView(windows=sorted(found, key=lambda one: (one.starts_at, one.id)))


def add_window(
    context: Context,
    *,
    starts_at: float,
    duration_s: float,
    node: str | None,
    repeat: str | None,
    note: str,
) -> MaintenanceView:
    """Declare a window of a node, or of all nodes. One that has begun stops runs at once.

    Raises:
        UserError: a time or the repetition is not valid, or the window is over.
        NotFound: the cluster has no such node.
    """
    now = context.store.clock()
    if not math.isfinite(duration_s) or not SHORTEST_S <= duration_s <= LONGEST_S:
        raise UserError(
            f"duration_s is {duration_s:g}; it must be from {SHORTEST_S:g} s to {LONGEST_S:g} s "
            "(90 days)."
        )
    if repeat is not None and repeat not in PERIODS_S:
        near = nearest(repeat, PERIODS_S)
        raise UserError(
            f"repeat is {repeat[:100]!r}; it must be {' or '.join(PERIODS_S)}, or be left out.",
            hint=f"Did you mean {near}?" if near else None,
        )
    if repeat is not None and duration_s >= PERIODS_S[repeat]:
        raise UserError(
            f"duration_s is {duration_s:g}: a window that repeats {repeat} must be shorter than "
            f"{PERIODS_S[repeat]:g} s."
        )
    if not math.isfinite(starts_at) or abs(starts_at - now) > FARTHEST_S:
        raise UserError(
            f"starts_at is {starts_at:g}; it must be within two years of now ({now:.0f}), in "
            "seconds since the epoch."
        )
    if occurrence(starts_at, duration_s, repeat, now) is None:
        raise UserError(
            "the window is over already.", hint="Give a begin that is not so long ago, or repeat."
        )
    if node is not None:
        known = [one.name for one in context.cluster_views.cluster().nodes]
        if node not in known:
            near = nearest(node, known)
            raise NotFound(
                f"The cluster has no node {node[:200]!r}.",
                hint=f"Did you mean {near}?" if near else f"It has: {', '.join(known) or 'none'}.",
            )
    row = context.store.maintenance.add(
        node=node,
        starts_at=starts_at,
        duration_s=duration_s,
        repeat=repeat,
        note=" ".join(note.split()),
        actor=actor.current(),
    )
    context.dispatcher.wake()
    return _view(context, row)


def remove_window(context: Context, window_id: int) -> MaintenanceView:
    """Remove a window. If it is open, its nodes are used again at once.

    Raises:
        NotFound: there is none of this number.
    """
    row = context.store.maintenance.remove(window_id)
    context.dispatcher.wake()
    return _view(context, row)


def _view(context: Context, row: MaintenanceRow) -> MaintenanceView:
    now = context.store.clock()
    at = occurrence(row.starts_at, row.duration_s, row.repeat, now)
    begin, end = at or (row.starts_at, row.starts_at + row.duration_s)
    return MaintenanceView.model_validate(
        {
            "id": row.id,
            "node": row.node,
            "state": "over" if at is None else "open" if begin <= now else "coming",
            "starts_at": begin,
            "ends_at": end,
            "repeat": row.repeat,
            "note": row.note,
            "created_by": row.created_by,
            "created_at": row.created_at,
        }
    )
