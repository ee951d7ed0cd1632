"""The client's methods for nodes and the queue."""

from __future__ import annotations

from typing import TYPE_CHECKING
from urllib.parse import quote

from pydantic import TypeAdapter

from lehr.client.frames import import_pandas, system_frame
from lehr.schemas.cluster import ClusterView, JoinView, LeaveView, QueueEntry
from lehr.schemas.system import SystemHistory

if TYPE_CHECKING:
    import pandas as pd

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

    def node_history(
        self,
        node: str,
        *,
        first: float | None = None,
        last: float | None = None,
        points: int = 400,
    ) -> SystemHistory:
        """Return a node's CPU, memory, disk, network and GPUs over time.

        Args:
            node: name of the node.
            first: begin, in seconds since the epoch. Default: an hour before ``last``.
            last: end. Default: now.
            points: neighbours are averaged until there are at most so many.

        Raises:
            NotFound: the cluster has no such node.
        """
        params = {"from": first, "to": last, "points": points}
        answer = self.transport.get(f"/cluster/nodes/{quote(node, safe='')}/history", params)
        return SystemHistory.model_validate_json(answer)

    def node_frame(
        self, node: str, *, first: float | None = None, last: float | None = None
    ) -> pd.DataFrame:
        """Return ``node_history`` as a pandas frame: one row per time, one column per figure."""
        import_pandas("node_frame()")
        return system_frame([self.node_history(node, first=first, last=last)])

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
