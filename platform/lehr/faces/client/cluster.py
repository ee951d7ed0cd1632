"""The client's methods for nodes and the queue."""

from __future__ import annotations

from typing import TYPE_CHECKING
from urllib.parse import quote

from pydantic import TypeAdapter

from lehr.schemas.cluster import ClusterView, JoinView, LeaveView, QueueEntry

if TYPE_CHECKING:
    from lehr.faces.client.transport import Transport


class ClusterMethods:
    """A part of ``lehr.faces.client.Client``."""

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

    def set_node_until(self, node: str, until: float | None) -> ClusterView:
        """Set until when a node is available, in seconds since the epoch; None: it has no end.

        Five minutes before, its runs save, are queued again, and resume on other nodes.
        """
        path = f"/cluster/nodes/{quote(node, safe='')}/until"
        return ClusterView.model_validate_json(self.transport.post(path, {"until": until}))

    def join_cluster(
        self,
        node: str,
        *,
        readmit: bool = False,
        check: bool = False,
        until: float | None = None,
    ) -> JoinView:
        """Return what a machine needs to join the cluster as ``node``. Contains secrets.

        ``readmit``: give the node work again if it had left; ``until``: until when it is available.
        ``check``: only look; the answer has no secrets.
        """
        body: dict[str, object] = {"node": node, "readmit": readmit}
        body |= ({"check": True} if check else {}) | ({"until": until} if until else {})
        return JoinView.model_validate_json(self.transport.post("/cluster/join", body))

    def leave_cluster(self, node: str) -> LeaveView:
        """Place no new runs on a node until it joins again."""
        return LeaveView.model_validate_json(self.transport.post("/cluster/leave", {"node": node}))

    def queue(self) -> list[QueueEntry]:
        """Return the queued runs in order, each with the reason why it waits."""
        return TypeAdapter(list[QueueEntry]).validate_json(self.transport.get("/queue"))
