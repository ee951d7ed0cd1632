"""The cluster: nodes, their GPUs, and exclusion of nodes."""

from __future__ import annotations

from typing import Annotated

from fastapi import APIRouter, Path
from pydantic import BaseModel, Field

from lehr.schemas import ClusterView
from lehr_api import examples
from lehr_api.deps import DispatcherDep
from lehr_api.etag import TaggedRoute

router = APIRouter(tags=["cluster"], route_class=TaggedRoute)

NodeName = Annotated[
    str, Path(description="A node's name.", examples=["n1"], min_length=1, max_length=200)
]


class Exclusion(BaseModel):
    reason: Annotated[str, Field(min_length=1, max_length=500, examples=["its fans are replaced"])]
    """Shown beside the node."""


@router.get("/cluster", responses=examples.answers(examples.CLUSTER))
def cluster(dispatcher: DispatcherDep) -> ClusterView:
    return dispatcher.cluster()


@router.post(
    "/cluster/nodes/{node}/exclude", responses=examples.answers(examples.CLUSTER, 400, 404)
)
def exclude(node: NodeName, body: Exclusion, dispatcher: DispatcherDep) -> ClusterView:
    """Place no new runs on the node. Its running runs continue. Idempotent."""
    dispatcher.exclude_node(node, body.reason)
    return dispatcher.cluster()


@router.post("/cluster/nodes/{node}/readmit", responses=examples.answers(examples.CLUSTER, 404))
def readmit(node: NodeName, dispatcher: DispatcherDep) -> ClusterView:
    """Place runs on the node again, and clear its failure count. Idempotent."""
    dispatcher.readmit_node(node)
    return dispatcher.cluster()
