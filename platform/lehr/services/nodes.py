"""Exclude and readmit nodes, and set their ends. Repeating it changes nothing."""

from __future__ import annotations

from typing import TYPE_CHECKING

from lehr.errors import NotFound, UserError, nearest

if TYPE_CHECKING:
    from lehr.schemas.cluster import ClusterView
    from lehr.services.context import Context

FARTHEST_S = 2 * 366 * 86_400.0


def exclude_node(context: Context, name: str, reason: str) -> ClusterView:
    """Place nothing more on the node; running attempts go on.

    Raises:
        NotFound: the cluster has no such node.
    """
    context.dispatcher.exclude_node(name, reason)
    return context.cluster_views.cluster()


def readmit_node(context: Context, name: str) -> ClusterView:
    """Give the node work again; its earlier failures no longer count.

    Raises:
        NotFound: the cluster has no such node.
    """
    context.dispatcher.readmit_node(name)
    return context.cluster_views.cluster()


def set_node_until(context: Context, name: str, until: float | None) -> ClusterView:
    """Record until when the node is available; None: it has no end.

    Raises:
        NotFound: the cluster has no such node.
        UserError: the time is over, or too far away.
    """
    check_until(context, until)
    known = [node.name for node in context.dispatcher.nodes()]
    if name not in known:
        near = nearest(name, known)
        raise NotFound(
            f"The cluster has no node {name[:200]!r}.",
            hint=f"Did you mean {near}?" if near else f"It has: {', '.join(known) or 'none'}.",
        )
    context.store.nodes.set_until(name, until)
    context.dispatcher.wake()
    return context.cluster_views.cluster()


def check_until(context: Context, until: float | None) -> None:
    """Raise UserError if a node cannot be available until this time."""
    now = context.store.clock()
    if until is not None and not now < until < now + FARTHEST_S:
        raise UserError(
            f"until is {until:.0f}; it must be after now ({now:.0f}) and within two years, in "
            "seconds since the epoch.",
            hint="To place nothing more on a node from now on: lehr node exclude NODE",
        )
