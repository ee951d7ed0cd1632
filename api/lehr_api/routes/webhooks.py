"""Webhooks: addresses that get messages about alerts and ended runs."""

from __future__ import annotations

from typing import Annotated

from fastapi import APIRouter, Path
from pydantic import ConfigDict, Field

from lehr.schemas.webhooks import WebhooksView, WebhookView
from lehr.services import webhooks
from lehr_api.deps import ServicesDep
from lehr_api.responses import problem_responses
from lehr_trainer.configs.documented import Documented

router = APIRouter(prefix="/webhooks", tags=["webhooks"])

Name = Annotated[str, Path(pattern=r"^[a-z0-9][a-z0-9-]{0,39}$", examples=["team"])]


class Address(Documented):
    """Where a webhook's messages go."""

    model_config = ConfigDict(extra="forbid")

    url: str = Field(min_length=1, max_length=2000, examples=["https://hooks.example.com/T0/B0"])
    """Address of http or https. It is stored on the server and never shown again."""


@router.get("", responses=problem_responses())
def list_webhooks(services: ServicesDep) -> WebhooksView:
    """Return the webhooks by name."""
    return webhooks.list_webhooks(services)


@router.put("/{name}", responses=problem_responses(422))
def put_webhook(name: Name, body: Address, services: ServicesDep) -> WebhookView:
    """Add a webhook, or give it another address. Idempotent."""
    return webhooks.put_webhook(services, name, body.url)


@router.delete("/{name}", responses=problem_responses(404))
def delete_webhook(name: Name, services: ServicesDep) -> WebhookView:
    """Remove a webhook. Specs that name it send nothing any more."""
    return webhooks.delete_webhook(services, name)


@router.post("/{name}/test", responses=problem_responses(404, 502))
def test_webhook(name: Name, services: ServicesDep) -> WebhookView:
    """Send a message to the webhook now; 502 if it does not arrive."""
    return webhooks.test_webhook(services, services.sender, name)
