"""The client's methods for named tokens, the audit and login links."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any
from urllib.parse import quote

from lehr.schemas.access import (
    AuditEntry,
    AuditPage,
    CreatedToken,
    LoginLink,
    TokensView,
    TokenView,
)

if TYPE_CHECKING:
    from lehr.client.transport import Transport


class AccessMethods:
    """A part of ``lehr.client.Client``."""

    transport: Transport

    def tokens(self) -> list[TokenView]:
        """Return the named tokens by name, without their values. Needs the role admin."""
        return TokensView.model_validate_json(self.transport.get("/tokens")).tokens

    def create_token(
        self, name: str, role: str, *, expires_in_days: float | None = None
    ) -> CreatedToken:
        """Create a named token; its value is only in this answer. Needs the role admin.

        Args:
            name: its name, e.g. anna-laptop.
            role: viewer, researcher or admin.
            expires_in_days: when it ends; None: never.
        """
        body = {"name": name, "role": role, "expires_in_days": expires_in_days}
        return CreatedToken.model_validate_json(self.transport.post("/tokens", body))

    def rotate_token(self, name: str) -> CreatedToken:
        """Replace the value of a token. The old one stops working at once. Needs the role admin."""
        answer = self.transport.post(f"/tokens/{quote(name, safe='')}/rotate")
        return CreatedToken.model_validate_json(answer)

    def revoke_token(self, name: str) -> TokenView:
        """End a token and the logins made with it at once. Needs the role admin."""
        return TokenView.model_validate_json(
            self.transport.delete(f"/tokens/{quote(name, safe='')}")
        )

    def audit(
        self, *, name: str | None = None, since: float | None = None, limit: int = 100
    ) -> list[AuditEntry]:
        """Return the newest requests that changed something or were refused, newest first.

        Needs the role admin.

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
