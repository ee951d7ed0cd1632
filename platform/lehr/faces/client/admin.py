"""The client's methods for nodes, the queue, and what an admin manages. Most need that role."""

from __future__ import annotations

from typing import Any
from urllib.parse import quote

from pydantic import TypeAdapter

from lehr.faces.client.transport import Transport
from lehr.schemas.cluster import (
    AuditEntry,
    AuditPage,
    BudgetView,
    ClusterHistory,
    ClusterView,
    CreatedToken,
    JoinView,
    LeaveView,
    LoginLink,
    NodeFigures,
    QueueEntry,
    QuotasView,
    QuotaView,
    SecretsView,
    SecretView,
    TokensView,
    TokenView,
)


class AdminMethods:
    """A part of ``lehr.faces.client.Client``."""

    transport: Transport

    def tokens(self) -> list[TokenView]:
        """Return the named tokens by name, without their values."""
        return self.transport.read(TokensView, "/tokens").tokens

    def create_token(
        self,
        name: str,
        role: str,
        *,
        expires_in_days: float | None = None,
        gpu_hours: float | None = None,
    ) -> CreatedToken:
        """Create a named token; its value is only in this answer. Needs the role admin.

        The role is viewer, researcher or admin. Without ``expires_in_days`` it never ends;
        ``gpu_hours`` is the budget of all runs submitted with it.
        """
        body: dict[str, Any] = {"name": name, "role": role}
        body |= {"expires_in_days": expires_in_days, "gpu_hours": gpu_hours}
        return CreatedToken.model_validate_json(self.transport.post("/tokens", body))

    def budget(self) -> BudgetView:
        """Return what the runs of this client's token have used, and its budget if it has one."""
        return self.transport.read(BudgetView, "/budget")

    def rotate_token(self, name: str) -> CreatedToken:
        """Replace the value of a token. The old one stops working at once."""
        answer = self.transport.post(f"{_path('tokens', name)}/rotate")
        return CreatedToken.model_validate_json(answer)

    def revoke_token(self, name: str) -> TokenView:
        """End a token and the logins made with it at once."""
        return TokenView.model_validate_json(self.transport.delete(_path("tokens", name)))

    def audit(
        self, *, name: str | None = None, since: float | None = None, limit: int = 100
    ) -> list[AuditEntry]:
        """Return the newest requests that changed something or were refused, newest first.

        ``name``: only with this token. ``since``: only from this time on, in seconds since the
        epoch.
        """
        query = {"name": name, "since": since}
        return self.transport.pages("/audit", AuditPage, query, limit)

    def login_link(self) -> LoginLink:
        """Make an address that logs a browser in as this client: once, within five minutes."""
        return LoginLink.model_validate_json(self.transport.post("/login-links"))

    def quotas(self) -> list[QuotaView]:
        """Return the quotas by project. A project without one has no limit."""
        return self.transport.read(QuotasView, "/quotas").quotas

    def set_quota(self, project: str, gpus: int) -> QuotaView:
        """Set the most GPUs that the project's runs hold at a time.

        Running runs go on, also beyond it.
        """
        answer = self.transport.put(_path("quotas", project), {"gpus": gpus})
        return QuotaView.model_validate_json(answer)

    def remove_quota(self, project: str) -> QuotaView:
        """Remove the quota of a project: its runs have no limit."""
        return QuotaView.model_validate_json(self.transport.delete(_path("quotas", project)))

    def secrets(self) -> list[SecretView]:
        """Return the secrets by name, without their values."""
        return self.transport.read(SecretsView, "/secrets").secrets

    def set_secret(self, name: str, value: str) -> SecretView:
        """Set a secret that specs may name. Attempts that start from now on get the value."""
        answer = self.transport.put(_path("secrets", name), {"value": value})
        return SecretView.model_validate_json(answer)

    def remove_secret(self, name: str) -> SecretView:
        """Remove a secret. Runs that name it and start later fail."""
        return SecretView.model_validate_json(self.transport.delete(_path("secrets", name)))

    def cluster(self) -> ClusterView:
        return self.transport.read(ClusterView, "/cluster")

    def cluster_history(self, hours: float = 24.0) -> ClusterHistory:
        """Return who held each GPU in the last hours, and why others were idle, in GPU-hours."""
        return self.transport.read(ClusterHistory, "/cluster/history", {"hours": hours})

    def node_figures(self, node: str, since: float | None = None) -> NodeFigures:
        """Return the figures of a node's GPUs, CPUs and RAM over time, as means of parts.

        ``since``: in seconds since the epoch; None: 24 hours ago. They are kept for seven days.
        """
        return self.transport.read(NodeFigures, "/cluster/figures", {"node": node, "since": since})

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
        self, node: str, *, readmit: bool = False, check: bool = False, until: float | None = None
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


def _path(noun: str, name: str) -> str:
    return f"/{noun}/{quote(name, safe='')}"
