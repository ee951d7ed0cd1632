"""The cluster: nodes and GPUs, exclusion of nodes, machines that join and leave, the queue."""

from __future__ import annotations

import time
from typing import Annotated

from fastapi import APIRouter, Path, Query, Request
from pydantic import BaseModel, Field

from lehr.app.services import nodes
from lehr.base.access import Role
from lehr.cluster.ray_head import ray_access
from lehr.errors import Unauthorized
from lehr.schemas.cluster import (
    ClusterHistory,
    ClusterView,
    JoinRequest,
    JoinView,
    LeaveRequest,
    LeaveView,
    NodeFigures,
    QueueEntry,
)
from lehr_api import auth
from lehr_api.auth import needs
from lehr_api.deps import RequestBody, ServicesDep
from lehr_api.problems import problem_responses
from lehr_api.tagged_route import TaggedRoute

router = APIRouter(tags=["cluster"], route_class=TaggedRoute)
_ADMIN = [needs(Role.ADMIN)]
_ADMIN_OR_NODE = [needs(Role.ADMIN, or_node=True)]

NodeName = Annotated[
    str, Path(description="A node's name.", examples=["n1"], min_length=1, max_length=200)
]


class Exclusion(BaseModel):
    reason: Annotated[str, Field(min_length=1, max_length=500, examples=["its fans are replaced"])]
    """Shown beside the node."""


class Until(RequestBody):
    until: float | None = Field(allow_inf_nan=False, examples=[1_796_000_400.0])
    """Seconds since the epoch; null: it has no end."""


@router.get("/cluster", dependencies=[needs(Role.VIEWER)])
def cluster(services: ServicesDep) -> ClusterView:
    return services.cluster_views.cluster()


@router.get("/cluster/history", dependencies=[needs(Role.VIEWER)])
def cluster_history(
    services: ServicesDep, hours: Annotated[float, Query(gt=0, le=31 * 24)] = 24.0
) -> ClusterHistory:
    """Return who held each GPU in the last hours, and why others were idle, in GPU-hours."""
    return nodes.show_history(services, hours)


@router.get("/cluster/figures", dependencies=[needs(Role.VIEWER)], responses=problem_responses(404))
def node_figures(
    services: ServicesDep,
    node: Annotated[str, Query(description="A node's name.", examples=["n1"], max_length=200)],
    since: Annotated[float | None, Query(allow_inf_nan=False)] = None,
) -> NodeFigures:
    """Return what a node's agent reported of its GPUs, CPUs and RAM since a time, in seconds since
    the epoch, by default of 24 hours: means of at most 300 parts.
    """
    return nodes.show_figures(services, node, since)


@router.get("/queue", dependencies=[needs(Role.VIEWER)])
def queue(services: ServicesDep) -> list[QueueEntry]:
    """Return the queued runs in order, each with the reason why it waits."""
    return services.cluster_views.queue()


@router.post("/cluster/nodes/{node}/exclude", dependencies=_ADMIN, responses=problem_responses(404))
def exclude(node: NodeName, body: Exclusion, services: ServicesDep) -> ClusterView:
    """Place no new runs on the node. Its running runs continue. Idempotent."""
    return nodes.exclude_node(services, node, body.reason)


@router.post("/cluster/nodes/{node}/readmit", dependencies=_ADMIN, responses=problem_responses(404))
def readmit(node: NodeName, services: ServicesDep) -> ClusterView:
    """Place runs on the node again, and clear its failure count. Idempotent."""
    return nodes.readmit_node(services, node)


@router.post("/cluster/nodes/{node}/until", dependencies=_ADMIN, responses=problem_responses(404))
def until(node: NodeName, body: Until, services: ServicesDep) -> ClusterView:
    """Set until when the node is available. Five minutes before, its runs save, are queued again,
    and resume on other nodes. No run starts that would lose work.
    """
    return nodes.set_node_until(services, node, body.until)


@router.post("/cluster/join", dependencies=_ADMIN_OR_NODE, responses=problem_responses(409))
def join_cluster(body: JoinRequest, request: Request, services: ServicesDep) -> JoinView:
    """Return what a machine needs to join, secrets included. Opened by a token to join, too.

    A check gets no secrets.
    """
    _check_own_name(request, services, body.node)
    settings = services.settings
    ray = ray_access(settings.home, ray_address=settings.ray_address, server_url=settings.url)
    return nodes.join(
        services,
        body.node,
        readmit=body.readmit,
        check=body.check,
        until=body.until,
        secret=settings.token,
        server_url=settings.url,
        ray=ray,
    )


@router.post("/cluster/leave", dependencies=_ADMIN_OR_NODE)
def leave_cluster(body: LeaveRequest, request: Request, services: ServicesDep) -> LeaveView:
    """Place no new runs on the node until it joins again. Its running runs continue."""
    _check_own_name(request, services, body.node, joined=True)
    return nodes.leave(services, body.node)


def _check_own_name(
    request: Request, services: ServicesDep, node: str, *, joined: bool = False
) -> None:
    """Raise Unauthorized for the token of another node. ``joined``: also for one of no node."""
    keys = auth.Keys(services.settings.token)
    found = auth.check_node(request.headers, keys, now=time.time())
    if found is None or found.node == node:
        return
    if found.node is None and joined:
        raise Unauthorized("a token for joining allows nothing but joining.")
    if found.node is not None:
        raise Unauthorized(f"the token is that of node {found.node}, not of {node}.")
