"""Ray's list of nodes, with each machine once. Imports no Ray."""

from __future__ import annotations

from dataclasses import asdict, dataclass, replace
from typing import Any

LABEL = "lehr.node"


@dataclass(frozen=True)
class RayNode:
    """A node of the Ray cluster, as Ray reports it."""

    name: str
    """Its ``lehr.node`` label, else its host's name."""
    ray_id: str
    address: str
    gpus: int
    alive: bool

    def to_json(self) -> dict[str, Any]:
        return asdict(self)


def current_nodes(listed: list[dict[str, Any]]) -> list[RayNode]:
    """Return each machine once, by its living node: Ray lists a restarted raylet as another
    node.
    """
    nodes: dict[str, RayNode] = {}
    for one in listed:
        node = RayNode(
            name=str((one.get("Labels") or {}).get(LABEL) or one["NodeManagerHostname"]),
            ray_id=str(one["NodeID"]),
            address=str(one["NodeManagerAddress"]),
            gpus=int((one.get("Resources") or {}).get("GPU", 0)),
            alive=bool(one["Alive"]),
        )
        twin = nodes.get(node.name)
        if twin is not None and twin.alive:
            if not node.alive:
                continue
            if twin.address != node.address:
                # Two machines with the same name are distinguished by address.
                node = replace(node, name=f"{node.name}@{node.address}")
        nodes[node.name] = node
    return sorted(nodes.values(), key=lambda node: node.name)
