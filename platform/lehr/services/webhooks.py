"""Add, list, remove and test the webhooks that get messages about runs."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Protocol

from lehr.alerting.messages import test_message
from lehr.alerting.webhooks import Webhooks
from lehr.schemas.webhooks import WebhooksView, WebhookView

if TYPE_CHECKING:
    from lehr.services.context import Context


class Sends(Protocol):
    """What sends a message and waits for the answer (``lehr.alerting.sender.Sender``)."""

    def send_now(self, name: str, body: dict[str, Any]) -> None: ...


def list_webhooks(context: Context) -> WebhooksView:
    found = Webhooks(context.home).list()
    return WebhooksView(webhooks=[WebhookView(name=one.name, host=one.host) for one in found])


def put_webhook(context: Context, name: str, url: str) -> WebhookView:
    """Add a webhook, or give it another address.

    Raises:
        UserError: the address is not one.
    """
    made = Webhooks(context.home).put(name, url)
    return WebhookView(name=made.name, host=made.host)


def delete_webhook(context: Context, name: str) -> WebhookView:
    """Remove a webhook, and return it. Specs that name it send nothing any more.

    Raises:
        NotFound: there is none of that name.
    """
    webhooks = Webhooks(context.home)
    removed = webhooks.get(name)
    webhooks.delete(name)
    return WebhookView(name=removed.name, host=removed.host)


def test_webhook(context: Context, sender: Sends, name: str) -> WebhookView:
    """Send it a message now.

    Raises:
        NotFound: there is none of that name.
        Undelivered: the message did not arrive.
    """
    webhook = Webhooks(context.home).get(name)
    sender.send_now(name, test_message(name))
    return WebhookView(name=webhook.name, host=webhook.host)
