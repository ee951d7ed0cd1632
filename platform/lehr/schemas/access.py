"""Named tokens and the audit."""

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


class TokensView(View):
    tokens: list[TokenView]
    """By name."""


class CreatedToken(TokenView):
    token: str
    """The value, shown only once."""


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


class LoginLink(View):
    url: str
    """Opens the dashboard once."""
    expires_at: float
    """Seconds since the epoch."""
