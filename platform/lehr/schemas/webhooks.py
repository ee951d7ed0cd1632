"""Webhooks of the server."""

from __future__ import annotations

from lehr.schemas.base import View


class WebhookView(View):
    """A webhook. Its address is a secret, so only its host is shown."""

    name: str
    host: str


class WebhooksView(View):
    webhooks: list[WebhookView]
    """By name."""
