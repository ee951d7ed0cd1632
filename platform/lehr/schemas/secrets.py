"""Secrets by name. No view has a value."""

from __future__ import annotations

from lehr.schemas.base import View


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
