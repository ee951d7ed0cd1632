"""Secrets by name: specs name them, trainings get their values."""

from __future__ import annotations

from typing import Annotated

from fastapi import APIRouter, Path
from pydantic import ConfigDict, Field, SecretStr

from lehr.schemas.secrets import SecretsView, SecretView
from lehr.services import secrets
from lehr_api.deps import ServicesDep
from lehr_api.responses import problem_responses
from lehr_trainer.configs.documented import Documented

router = APIRouter(tags=["access"])

Name = Annotated[str, Path(max_length=200, examples=["hf-read"])]


class SecretRequest(Documented):
    """The value of a secret."""

    model_config = ConfigDict(extra="forbid")

    value: SecretStr = Field(examples=["hf_read_only"])
    """The value, at most 32,768 bytes."""


@router.get("/secrets", responses=problem_responses())
def list_secrets(services: ServicesDep) -> SecretsView:
    """Return the secrets by name, never their values."""
    return secrets.list_secrets(services)


@router.put("/secrets/{name}", responses=problem_responses(422))
def set_secret(name: Name, body: SecretRequest, services: ServicesDep) -> SecretView:
    """Set a secret, old or new. No answer ever has its value."""
    return secrets.set_secret(services, name, body.value.get_secret_value())


@router.delete("/secrets/{name}", responses=problem_responses(404))
def remove_secret(name: Name, services: ServicesDep) -> SecretView:
    """Remove a secret. A run that names it fails with the reason if it starts later."""
    return secrets.remove_secret(services, name)
