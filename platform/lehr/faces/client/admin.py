"""The client's methods for what an admin manages. All that change something need that role."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any
from urllib.parse import quote

from lehr.schemas.admin import (
    AuditEntry,
    AuditPage,
    BudgetView,
    CreatedToken,
    LoginLink,
    QuotasView,
    QuotaView,
    SecretsView,
    SecretView,
    TokensView,
    TokenView,
    WebhooksView,
    WebhookView,
)

if TYPE_CHECKING:
    from lehr.faces.client.transport import Transport


class AdminMethods:
    """A part of ``lehr.faces.client.Client``."""

    transport: Transport

    def tokens(self) -> list[TokenView]:
        """Return the named tokens by name, without their values."""
        return TokensView.model_validate_json(self.transport.get("/tokens")).tokens

    def create_token(
        self,
        name: str,
        role: str,
        *,
        expires_in_days: float | None = None,
        gpu_hours: float | None = None,
    ) -> CreatedToken:
        """Create a named token; its value is only in this answer. Needs the role admin.

        Args:
            name: its name, e.g. anna-laptop.
            role: viewer, researcher or admin.
            expires_in_days: when it ends; None: never.
            gpu_hours: the budget of all runs submitted with it; None: no limit.
        """
        body: dict[str, Any] = {"name": name, "role": role}
        body |= {"expires_in_days": expires_in_days, "gpu_hours": gpu_hours}
        return CreatedToken.model_validate_json(self.transport.post("/tokens", body))

    def budget(self) -> BudgetView:
        """Return what the runs of this client's token have used, and its budget if it has one."""
        return BudgetView.model_validate_json(self.transport.get("/budget"))

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

        Args:
            name: only requests with this token.
            since: only from this time on, in seconds since the epoch.
            limit: most entries.
        """
        found: list[AuditEntry] = []
        cursor: str | None = None
        while len(found) < limit:
            query: dict[str, Any] = {"name": name, "since": since, "cursor": cursor}
            query = {key: value for key, value in query.items() if value is not None}
            query["limit"] = min(1000, limit - len(found))
            page = AuditPage.model_validate_json(self.transport.get("/audit", query))
            found += page.items
            cursor = page.next_cursor
            if cursor is None:
                break
        return found

    def login_link(self) -> LoginLink:
        """Make an address that logs a browser in as this client: once, within five minutes."""
        return LoginLink.model_validate_json(self.transport.post("/login-links"))

    def quotas(self) -> list[QuotaView]:
        """Return the quotas by project. A project without one has no limit."""
        return QuotasView.model_validate_json(self.transport.get("/quotas")).quotas

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
        return SecretsView.model_validate_json(self.transport.get("/secrets")).secrets

    def set_secret(self, name: str, value: str) -> SecretView:
        """Set a secret that specs may name. Attempts that start from now on get the value."""
        answer = self.transport.put(_path("secrets", name), {"value": value})
        return SecretView.model_validate_json(answer)

    def remove_secret(self, name: str) -> SecretView:
        """Remove a secret. Runs that name it and start later fail."""
        return SecretView.model_validate_json(self.transport.delete(_path("secrets", name)))

    def webhooks(self) -> list[WebhookView]:
        """Return the webhooks of the server by name. Their addresses are not shown."""
        return WebhooksView.model_validate_json(self.transport.get("/webhooks")).webhooks

    def put_webhook(self, name: str, url: str) -> WebhookView:
        """Add a webhook, or give it another address."""
        answer = self.transport.put(_path("webhooks", name), {"url": url})
        return WebhookView.model_validate_json(answer)

    def delete_webhook(self, name: str) -> WebhookView:
        """Remove a webhook. Specs that name it send nothing any more."""
        return WebhookView.model_validate_json(self.transport.delete(_path("webhooks", name)))

    def test_webhook(self, name: str) -> WebhookView:
        """Send a message to a webhook now."""
        answer = self.transport.post(f"{_path('webhooks', name)}/test")
        return WebhookView.model_validate_json(answer)


def _path(noun: str, name: str) -> str:
    return f"/{noun}/{quote(name, safe='')}"
