"""The client's methods for secrets."""

from __future__ import annotations

from typing import TYPE_CHECKING
from urllib.parse import quote

from lehr.schemas.secrets import SecretsView, SecretView

if TYPE_CHECKING:
    from lehr.client.transport import Transport


class SecretMethods:
    """A part of ``lehr.client.Client``."""

    transport: Transport

    def secrets(self) -> list[SecretView]:
        """Return the secrets by name, without their values."""
        return SecretsView.model_validate_json(self.transport.get("/secrets")).secrets

    def set_secret(self, name: str, value: str) -> SecretView:
        """Set a secret that specs may name. Needs the role admin.

        Attempts that start from now on get the value.
        """
        path = f"/secrets/{quote(name, safe='')}"
        return SecretView.model_validate_json(self.transport.put(path, {"value": value}))

    def remove_secret(self, name: str) -> SecretView:
        """Remove a secret. Needs the role admin. Runs that name it and start later fail."""
        answer = self.transport.delete(f"/secrets/{quote(name, safe='')}")
        return SecretView.model_validate_json(answer)
