"""The machines: which GPUs there are, who holds them, and which get no more work."""

from __future__ import annotations

from typing import Annotated

from fastapi import APIRouter, Path
from pydantic import BaseModel, Field

from lehr.schemas import ClusterView
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
    """Shown wherever the node is."""


@router.get("/cluster", responses=problem_responses())
def cluster(services: ServicesDep) -> ClusterView:
    return services.cluster_views.cluster()


@router.post("/cluster/nodes/{node}/exclude", responses=problem_responses(400, 404))
def exclude(node: NodeName, body: Exclusion, services: ServicesDep) -> ClusterView:
    """Nothing more is placed on the node; what runs there goes on. Asking twice is once."""
    return exclude_node(services, node, body.reason)


@router.post("/cluster/nodes/{node}/readmit", responses=problem_responses(404))
def readmit(node: NodeName, services: ServicesDep) -> ClusterView:
    """The node gets work again, and what it failed before is forgiven. Asking twice is once."""
    return readmit_node(services, node)
