"""The client's methods for nodes and the queue."""

from __future__ import annotations

from typing import TYPE_CHECKING
from urllib.parse import quote

from pydantic import TypeAdapter

from lehr.schemas.cluster import ClusterView, JoinView, LeaveView, QueueEntry

if TYPE_CHECKING:
    from lehr.client.transport import Transport


class ClusterMethods:
    """A part of ``lehr.client.Client``."""

    transport: Transport

    def cluster(self) -> ClusterView:
        return ClusterView.model_validate_json(self.transport.get("/cluster"))

    def exclude_node(self, node: str, reason: str = "by the user") -> ClusterView:
        """Place no new runs on a node. Its running runs continue."""
        path = f"/cluster/nodes/{quote(node, safe='')}/exclude"
        return ClusterView.model_validate_json(self.transport.post(path, {"reason": reason}))

    def readmit_node(self, node: str) -> ClusterView:
        """Place runs on a node again, and clear its failure count."""
        path = f"/cluster/nodes/{quote(node, safe='')}/readmit"
        return ClusterView.model_validate_json(self.transport.post(path))

    def join_cluster(self, node: str, *, readmit: bool = False, check: bool = False) -> JoinView:
        """Return what a machine needs to join the cluster as ``node``. Contains secrets.

        ``readmit``: give the node work again if it had left. ``check``: only look; the answer has
        no secrets.
        """
        body = {"node": node, "readmit": readmit} | ({"check": True} if check else {})
        return JoinView.model_validate_json(self.transport.post("/cluster/join", body))

    def leave_cluster(self, node: str) -> LeaveView:
        """Place no new runs on a node until it joins again."""
        return LeaveView.model_validate_json(self.transport.post("/cluster/leave", {"node": node}))

    def queue(self) -> list[QueueEntry]:
        """Return the queued runs in order, each with the reason why it waits."""
        return TypeAdapter(list[QueueEntry]).validate_json(self.transport.get("/queue"))
