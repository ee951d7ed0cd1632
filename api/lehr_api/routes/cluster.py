"""The cluster: nodes, their GPUs, and exclusion of nodes."""

from __future__ import annotations

from typing import Annotated

from fastapi import APIRouter, Path
from pydantic import BaseModel, Field

from lehr.schemas.cluster import ClusterView
from lehr.services.nodes import exclude_node, readmit_node
from lehr_api.deps import ServicesDep
from lehr_api.etag import TaggedRoute
from lehr_api.responses import problem_responses

router = APIRouter(tags=["cluster"], route_class=TaggedRoute)

NodeName = Annotated[
    str, Path(description="A node's name.", examples=["n1"], min_length=1, max_length=200)
]


class Exclusion(BaseModel):
    reason: Annotated[str, Field(min_length=1, max_length=500, examples=["its fans are replaced"])]
    """Shown beside the node."""


@router.get("/cluster", responses=problem_responses())
def cluster(services: ServicesDep) -> ClusterView:
    return services.cluster_views.cluster()


@router.post("/cluster/nodes/{node}/exclude", responses=problem_responses(400, 404))
def exclude(node: NodeName, body: Exclusion, services: ServicesDep) -> ClusterView:
    """Place no new runs on the node. Its running runs continue. Idempotent."""
    return exclude_node(services, node, body.reason)


@router.post("/cluster/nodes/{node}/readmit", responses=problem_responses(404))
def readmit(node: NodeName, services: ServicesDep) -> ClusterView:
    """Place runs on the node again, and clear its failure count. Idempotent."""
    return readmit_node(services, node)
