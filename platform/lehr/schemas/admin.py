"""What an admin manages: tokens, the audit, quotas, secrets and webhooks."""

from __future__ import annotations

from typing import Literal

from lehr.schemas.base import Page, View


class TokenView(View):
    """A named token, without its value."""

    name: str
    role: str
    """viewer, researcher or admin."""
    state: Literal["valid", "expired", "revoked"]
    created_at: float
    """When it was created or last rotated, in seconds since the epoch."""
    expires_at: float | None
    """null: never."""
    revoked_at: float | None
    gpu_hours: float | None = None
    """The budget: GPU-hours that its runs may use in all; null: no limit."""


class TokensView(View):
    tokens: list[TokenView]
    """By name."""


class CreatedToken(TokenView):
    token: str
    """The value, shown only once."""


class BudgetView(View):
    """What the runs of a token have used, in GPU-hours of their attempts."""

    name: str
    """The token's name; user is the server's own token."""
    gpu_hours: float | None
    """The budget; null: no limit."""
    used: float
    promised: float
    """What runs that have not ended may still use by their plans; 0 without a budget."""
    left: float | None = None
    """The budget without both; null without a budget."""


class AuditEntry(View):
    """A request that changed something, or was refused."""

    id: int
    at: float
    """Seconds since the epoch."""
    name: str
    """The token's name; user is the server's own token."""
    role: str
    method: str
    path: str
    status: int
    """The HTTP status of the answer."""
    address: str
    """Where the request came from."""


class AuditPage(Page[AuditEntry]):
    """Newest first."""


class QuotaView(View):
    """The most GPUs that the runs of a project hold at a time."""

    project: str
    gpus: int
    changed_at: float
    """When it was last set, in seconds since the epoch."""
    changed_by: str
    """The name of the token that set it; user is the server's own token."""


class QuotasView(View):
    quotas: list[QuotaView]
    """By project."""


class SecretView(View):
    """A secret, without its value."""

    name: str
    changed_at: float
    """When its value was last set, in seconds since the epoch."""
    changed_by: str
    """The name of the token that set it; user is the server's own token."""


class SecretsView(View):
    secrets: list[SecretView]
    """By name."""


class WebhookView(View):
    """A webhook. Its address is a secret, so only its host is shown."""

    name: str
    host: str


class WebhooksView(View):
    webhooks: list[WebhookView]
    """By name."""


class LoginLink(View):
    url: str
    """Opens the dashboard once."""
    expires_at: float
    """Seconds since the epoch."""
