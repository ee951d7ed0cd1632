"""Exclude and readmit nodes. Repeating it changes nothing."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from lehr.schemas.cluster import ClusterView
    from lehr.services.context import Context


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
