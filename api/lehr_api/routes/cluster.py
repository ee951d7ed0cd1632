"""The machines: which GPUs there are, who holds them, and which get no more work."""

from __future__ import annotations

from typing import Annotated

from fastapi import APIRouter, Path
from pydantic import BaseModel, Field

from lehr.schemas import ClusterView
from lehr_api.deps import DispatcherDep
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
def cluster(dispatcher: DispatcherDep) -> ClusterView:
    return dispatcher.cluster()


@router.post("/cluster/nodes/{node}/exclude", responses=problem_responses(400, 404))
def exclude(node: NodeName, body: Exclusion, dispatcher: DispatcherDep) -> ClusterView:
    """Nothing more is placed on the node; what runs there goes on. Asking twice is once."""
    dispatcher.exclude_node(node, body.reason)
    return dispatcher.cluster()


@router.post("/cluster/nodes/{node}/readmit", responses=problem_responses(404))
def readmit(node: NodeName, dispatcher: DispatcherDep) -> ClusterView:
    """The node gets work again, and what it failed before is forgiven. Asking twice is once."""
    dispatcher.readmit_node(node)
    return dispatcher.cluster()
